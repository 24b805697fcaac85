// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/dispatch_clock.h"

#include <algorithm>

namespace ostinato {

DispatchClock::DispatchClock(const Instance& instance, int micro_batches)
    : in_(instance), micro_batches_(micro_batches) {
  count_.assign(in_.blocks(), 0);
  ends_.resize(count_.size());
  free_.assign(in_.devices(), 0);
  used_.assign(free_.size(), 0);
  for (auto& ends : ends_) ends.reserve(micro_batches);
  schedule_.reserve(count_.size() * micro_batches);
  arrivals_.resize(free_.size());
  announced_.assign(count_.size(), 0);
  for (int b = 0; b < in_.blocks(); ++b) announce(b);
}

/// If the inputs of the next step of b have started, its devices are told, once, when they arrive.
void DispatchClock::announce(int b) {
  if (ended(b) || announced_[b] > count_[b]) return;
  const Nanoseconds at = arrival(b);
  if (at == kNever) return;
  const int micro_batch = announced_[b]++;
  for (const int d : in_.devices_of(b)) arrivals_[d].push({at, b, micro_batch});
}

Nanoseconds DispatchClock::arrival(int b) const {
  Nanoseconds at = 0;
  const int i = count_[b];
  for (const Edge& e : in_.inputs(b)) {
    if (count_[e.block] <= i) return kNever;
    at = std::max(at, ends_[e.block][i] + e.transfer);
  }
  return at;
}

bool DispatchClock::fits(int b) const {
  if (!in_.any_limited()) return true;
  const Bytes needed = std::max<Bytes>(0, in_.memory(b)) + in_.workspace(b);
  const auto devices = in_.devices_of(b);
  return std::all_of(devices.begin(), devices.end(),
                     [&](int d) { return !in_.limited(d) || used_[d] + needed <= in_.room(d); });
}

bool DispatchClock::start_when_free(int b, int d, Nanoseconds now) {
  Nanoseconds all_free = now;
  for (const int e : in_.devices_of(b)) all_free = std::max(all_free, free_[e]);
  if (all_free > now) {
    wake(d, all_free);
    return false;
  }
  start(b, now);
  return true;
}

void DispatchClock::start(int b, Nanoseconds now) {
  const Nanoseconds end = now + in_.time(b);
  schedule_.push_back({b, count_[b]++, now});
  ends_[b].push_back(end);
  for (const int d : in_.devices_of(b)) {
    free_[d] = end;
    used_[d] += in_.memory(b);
    wake(d, end);
  }
  announce(b);
  for (const Edge& e : in_.followers(b)) {
    announce(e.block);
    wake(in_.devices_of(e.block).front(), end + e.transfer);
  }
}

std::vector<ScheduledBlock> DispatchClock::take_schedule() {
  if (schedule_.size() != count_.size() * micro_batches_) schedule_.clear();
  return std::move(schedule_);
}

}  // namespace ostinato
