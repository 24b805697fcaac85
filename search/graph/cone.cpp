// SPDX-License-Identifier: Apache-2.0
#include "search/graph/cone.h"

#include <algorithm>
#include <functional>

namespace ostinato::graph {

GraphCone::GraphCone(const GraphSide& side, int vertices)
    : side_(side), deadline_(vertices, 0), seen_(vertices, 0), group_seen_(vertices, 0) {}

bool GraphCone::must_be_here(int input, std::size_t entry, int device, Ticks deadline) const {
  return side_.remote[entry * side_.devices + device] > deadline || group_seen_[side_.group[input]] == look_;
}

/// What comes too late over a link must be here, and end by the deadline; false where that is past its
/// release and duration.
bool GraphCone::force_inputs(int v, int device, Ticks deadline) {
  const auto inputs = side_.inputs[v];
  group_seen_[side_.group[v]] = look_;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::size_t entry = side_.inputs.begin(v) + i;
    const int u = inputs[i];
    if (!must_be_here(u, entry, device, deadline)) continue;
    const bool known = seen_[u] == look_;
    deadline_[u] = known ? std::min(deadline_[u], deadline) : deadline;
    const std::size_t here = static_cast<std::size_t>(u) * side_.devices + device;
    if (side_.release[here] > deadline - side_.durations[here]) return false;
    if (known) continue;
    seen_[u] = look_;
    heap_.emplace_back(side_.rank[u], u);
    std::push_heap(heap_.begin(), heap_.end());
  }
  return true;
}

/// The vertices that must run here, each with its deadline: a vertex comes behind all that read it.
bool GraphCone::gather(int v, int device, Ticks time) {
  ++look_;
  heap_.clear();
  jobs_.clear();
  if (!force_inputs(v, device, time)) return false;
  while (!heap_.empty() && static_cast<int>(jobs_.size()) < kMostForced) {
    std::pop_heap(heap_.begin(), heap_.end());
    const int u = heap_.back().second;
    heap_.pop_back();
    const std::size_t here = static_cast<std::size_t>(u) * side_.devices + device;
    jobs_.push_back({side_.release[here], side_.durations[here], deadline_[u]});
    if (!force_inputs(u, device, deadline_[u] - side_.durations[here])) return false;
  }
  return true;
}

/// Earliest deadline first, interrupted whenever something more urgent is released.
bool GraphCone::in_turn() {
  if (jobs_.size() < 2) return true;
  std::sort(jobs_.begin(), jobs_.end(), [](const Job& a, const Job& b) { return a.release < b.release; });
  ready_.clear();
  Ticks now = 0;
  for (std::size_t next = 0; next < jobs_.size() || !ready_.empty();) {
    if (ready_.empty()) now = std::max(now, jobs_[next].release);
    for (; next < jobs_.size() && jobs_[next].release <= now; ++next) {
      ready_.emplace_back(jobs_[next].deadline, jobs_[next].duration);
      std::push_heap(ready_.begin(), ready_.end(), std::greater<>());
    }
    std::pop_heap(ready_.begin(), ready_.end(), std::greater<>());
    auto [deadline, left] = ready_.back();
    ready_.pop_back();
    const Ticks until = next < jobs_.size() ? std::min(now + left, jobs_[next].release) : now + left;
    left -= until - now;
    now = until;
    if (now + left > deadline) return false;
    if (left == 0) continue;
    ready_.emplace_back(deadline, left);
    std::push_heap(ready_.begin(), ready_.end(), std::greater<>());
  }
  return true;
}

bool GraphCone::possible(int v, int device, Ticks time) { return gather(v, device, time) && in_turn(); }

Ticks GraphCone::earliest(int v, int device, Ticks from) {
  if (possible(v, device, from)) return from;
  Ticks low = from, step = std::max<Ticks>(1, from / 256);  // `low` is impossible
  while (step < kTicksPerUnit * kTicksPerUnit / 4 && !possible(v, device, low + step)) {
    low += step;
    step *= 2;
  }
  for (Ticks high = low + step; high - low > 1;) {
    const Ticks middle = low + (high - low) / 2;
    (possible(v, device, middle) ? high : low) = middle;
  }
  return low + 1;
}

}  // namespace ostinato::graph
