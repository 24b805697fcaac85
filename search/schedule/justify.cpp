// SPDX-License-Identifier: Apache-2.0
// Each pass dispatches in time: when a device becomes free, it starts, of the steps with their inputs there,
// the first one in the old schedule that may go. A step may go ahead of earlier ones on a device only if
// these still fit into its memory, in their old order, after it; so no pass runs into a deadlock. With
// `patient`, it must also end before the first of them started. Passes alternate between the instance and
// its mirror, and end after two without a gain; the result is replaced by a shorter one only.
#include "search/schedule/justify.h"

#include <algorithm>

#include "search/schedule/dispatch_clock.h"
#include "search/schedule/ready_steps.h"
#include "search/schedule/shift.h"

namespace ostinato {
namespace {

/// One pass forwards in the time of its instance.
class Pass {
 public:
  Pass(const Instance& in, int micro_batches, const std::vector<ScheduledBlock>& base,
       const JustifyOptions& options)
      : in_(in),
        base_(base),
        options_(options),
        clock_(in, micro_batches),
        ready_(clock_, in.devices()),
        rank_(base.size()),
        order_(in.devices()),
        next_(order_.size(), 0) {
    for (std::size_t r = 0; r < base.size(); ++r) {
      rank_[index(base[r].block, base[r].micro_batch)] = static_cast<int>(r);
      for (const int d : in.devices_of(base[r].block)) order_[d].push_back(static_cast<int>(r));
    }
  }

  std::vector<ScheduledBlock> run() {
    clock_.run([this](int d, Nanoseconds now) { serve(d, now); });
    return clock_.take_schedule();
  }

 private:
  std::size_t index(int b, int micro_batch) const {
    return static_cast<std::size_t>(b) * clock_.micro_batches() + micro_batch;
  }
  bool started(int rank) const { return clock_.count(base_[rank].block) > base_[rank].micro_batch; }
  Bytes room(int d) const { return options_.room.empty() ? in_.room(d) : options_.room[d]; }

  void serve(int d, Nanoseconds now) {
    if (++served_ % kServedAtOnce == 0 && options_.stop && options_.stop()) return clock_.give_up();
    clock_.take_arrived(d, now,
                        [&](int b) { ready_.add(d, rank_[index(b, clock_.count(b))], b, clock_.count(b)); });
    const int best = ready_.first(d, [&](int b, int rank) { return may_go(b, rank, now); });
    if (best >= 0) clock_.start_when_free(best, d, now);
  }

  /// Step `rank`, of block b, may run now, ahead of all that comes before it on its devices.
  bool may_go(int b, int rank, Nanoseconds now) {
    const auto devices = in_.devices_of(b);
    return std::all_of(devices.begin(), devices.end(), [&](int d) {
      while (started(order_[d][next_[d]])) ++next_[d];
      const int first = order_[d][next_[d]];
      if (first == rank) return true;
      if (options_.patient && now + in_.time(b) > base_[first].start) return false;
      return others_fit_after(b, rank, d);
    });
  }

  /// On d, what comes before step `rank` still fits, in its order, if that step runs first.
  bool others_fit_after(int b, int rank, int d) const {
    const Bytes room = this->room(d);
    if (room == kUnlimited) return true;
    Bytes used = clock_.used(d);
    const auto runs = [&](int block) {
      const bool fits = used + std::max<Bytes>(0, in_.memory(block)) + in_.workspace(block) <= room;
      used += in_.memory(block);
      return fits;
    };
    if (!runs(b)) return false;
    if (in_.memory(b) <= 0) return true;
    for (std::size_t i = next_[d]; order_[d][i] != rank; ++i) {
      if (!started(order_[d][i]) && !runs(base_[order_[d][i]].block)) return false;
    }
    return true;
  }

  static constexpr std::int64_t kServedAtOnce = 1 << 10;

  const Instance& in_;
  const std::vector<ScheduledBlock>& base_;
  const JustifyOptions& options_;
  DispatchClock clock_;
  ReadySteps<int> ready_;  ///< by rank
  std::int64_t served_ = 0;
  std::vector<int> rank_;                ///< place of a step in base
  std::vector<std::vector<int>> order_;  ///< per device: its steps by rank
  std::vector<std::size_t> next_;        ///< per device: the first in its order that has not started
};

Nanoseconds end_of(const Instance& in, const std::vector<ScheduledBlock>& schedule) {
  Nanoseconds end = 0;
  for (const ScheduledBlock& s : schedule) end = std::max(end, s.start + in.time(s.block));
  return end;
}

/// The same schedule with time running the other way, by start.
std::vector<ScheduledBlock> turned_round(const Instance& in, int micro_batches,
                                         const std::vector<ScheduledBlock>& schedule) {
  const Nanoseconds end = end_of(in, schedule);
  std::vector<ScheduledBlock> turned;
  turned.reserve(schedule.size());
  for (auto s = schedule.rbegin(); s != schedule.rend(); ++s) {
    turned.push_back({s->block, micro_batches - 1 - s->micro_batch, end - s->start - in.time(s->block)});
  }
  std::stable_sort(turned.begin(), turned.end(),
                   [](const ScheduledBlock& a, const ScheduledBlock& b) { return a.start < b.start; });
  return turned;
}

std::vector<int> sequence_of(const std::vector<ScheduledBlock>& schedule, bool turned) {
  std::vector<int> sequence;
  for (const ScheduledBlock& s : schedule) sequence.push_back(s.block);
  if (turned) std::reverse(sequence.begin(), sequence.end());
  return sequence;
}

}  // namespace

Justified justify(const Instance& instance, const Instance& mirror, int micro_batches,
                  const std::vector<int>& sequence, const JustifyOptions& options) {
  std::vector<ScheduledBlock> now = as_early_as_possible(instance, micro_batches, sequence);
  Justified best{sequence, end_of(instance, now), 0};
  int idle = 0;
  for (int pass = 0; pass < options.passes && idle < 2 && !now.empty(); ++pass, ++idle) {
    const bool backwards = pass % 2 == 1;
    const Instance& in = backwards ? mirror : instance;
    if (pass > 0) now = turned_round(in, micro_batches, now);
    now = Pass(in, micro_batches, now, options).run();
    best.steps += static_cast<std::int64_t>(sequence.size());
    const Nanoseconds makespan = end_of(in, now);
    if (now.empty() || makespan >= best.makespan) continue;
    best.sequence = sequence_of(now, backwards);
    best.makespan = makespan;
    idle = -1;
  }
  return best;
}

}  // namespace ostinato
