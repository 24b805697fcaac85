// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/shift.h"

#include <algorithm>

#include "search/plan/orders.h"

namespace ostinato {
namespace {

/// The end of the first interval after `interval` for which the k-th repetition of x meets y for some k, or 0
/// if none does: they meet if |delta - k * interval| is shorter than the one that runs first, so a block of
/// no time meets those that it stands inside of, and none whose border it stands at. delta = start(y) -
/// start(x) >= 0.
Nanoseconds clash(Nanoseconds delta, Nanoseconds time_x, Nanoseconds time_y, Nanoseconds interval) {
  // Repetition k of x starts at k * interval; y starts at delta.
  for (Nanoseconds k = std::max<Nanoseconds>(1, delta / interval); k <= delta / interval + 1; ++k) {
    const Nanoseconds from_x = delta - k * interval;  // y starts this much after the repetition
    const bool meet = from_x == 0  ? time_x > 0 && time_y > 0
                      : from_x > 0 ? from_x < time_x
                                   : -from_x < time_y;
    if (meet) return (delta + time_y + k - 1) / k;  // then y ends before it starts
  }
  return 0;
}

}  // namespace

std::vector<ScheduledBlock> as_early_as_possible(const Instance& in, int micro_batches,
                                                 const std::vector<int>& sequence) {
  const std::size_t n = micro_batches;
  std::vector<Nanoseconds> free(in.devices(), 0);
  std::vector<int> count(in.blocks(), 0);
  std::vector<Nanoseconds> ends(count.size() * n, 0);
  std::vector<ScheduledBlock> schedule;
  schedule.reserve(sequence.size());
  for (const int b : sequence) {
    const int i = count[b]++;
    Nanoseconds start = 0;
    for (const int d : in.devices_of(b)) start = std::max(start, free[d]);
    for (const Edge& e : in.inputs(b)) {
      if (count[e.block] <= i) return {};
      start = std::max(start, ends[static_cast<std::size_t>(e.block) * n + i] + e.transfer);
    }
    const Nanoseconds end = start + in.time(b);
    for (const int d : in.devices_of(b)) free[d] = end;
    ends[static_cast<std::size_t>(b) * n + i] = end;
    schedule.push_back({b, i, start});
  }
  return schedule;
}

void sort_as_run(const Instance& in, std::vector<ScheduledBlock>& schedule) {
  std::sort(schedule.begin(), schedule.end(), [&](const ScheduledBlock& a, const ScheduledBlock& b) {
    if (a.start != b.start) return a.start < b.start;
    if ((in.time(a.block) == 0) != (in.time(b.block) == 0)) return in.time(a.block) == 0;
    return a.block != b.block ? in.rank(a.block) < in.rank(b.block) : a.micro_batch < b.micro_batch;
  });
}

std::vector<ScheduledBlock> as_late_as_possible(const Instance& in, int micro_batches,
                                                std::vector<ScheduledBlock> schedule) {
  const std::size_t blocks = in.blocks();
  std::vector<Nanoseconds> limit(in.devices(),
                                 0);  // start of the next step on the device
  for (const ScheduledBlock& s : schedule) {
    for (const int d : in.devices_of(s.block)) limit[d] = std::max(limit[d], s.start + in.time(s.block));
  }
  std::vector<Nanoseconds> start(blocks * micro_batches, 0);
  const auto at = [&](int b, int m) -> Nanoseconds& {
    return start[static_cast<std::size_t>(m) * blocks + b];
  };
  Nanoseconds first = std::numeric_limits<Nanoseconds>::max();
  for (auto s = schedule.rbegin(); s != schedule.rend(); ++s) {
    Nanoseconds end = std::numeric_limits<Nanoseconds>::max();
    for (const int d : in.devices_of(s->block)) end = std::min(end, limit[d]);
    for (const Edge& e : in.followers(s->block))
      end = std::min(end, at(e.block, s->micro_batch) - e.transfer);
    s->start = at(s->block, s->micro_batch) = end - in.time(s->block);
    for (const int d : in.devices_of(s->block)) limit[d] = s->start;
    first = std::min(first, s->start);
  }
  for (ScheduledBlock& s : schedule) s.start -= first;
  return schedule;
}

Nanoseconds least_interval(const Instance& in, const std::vector<Nanoseconds>& start, Nanoseconds at_least) {
  Nanoseconds interval = std::max<Nanoseconds>(1, at_least);
  for (bool again = true; again;) {
    again = false;
    for (int d = 0; d < in.devices(); ++d) {
      for (const int x : in.blocks_on(d)) {
        for (const int y : in.blocks_on(d)) {
          if (start[y] < start[x] || (start[y] == start[x] && x == y && in.time(x) <= interval)) continue;
          const Nanoseconds next = clash(start[y] - start[x], in.time(x), in.time(y), interval);
          if (next <= interval) continue;
          interval = next;
          again = true;
        }
      }
    }
  }
  return interval;
}

}  // namespace ostinato
