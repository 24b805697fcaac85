// SPDX-License-Identifier: Apache-2.0
#include "search/graph/fork.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

namespace ostinato::graph {

GraphForks::GraphForks(const GraphTimes& times, GraphReach& reach, const std::vector<char>& matters)
    : times_(times),
      reach_(reach),
      devices_(times.device_count),
      matters_(matters),
      soonest_(times.graph.size(), kGraphNever),
      local_(times.graph.size(), -1) {
  for (int v = 0; v < times.graph.size(); ++v)
    for (const int d : times.homes(v)) soonest_[v] = std::min(soonest_[v], reach(v, d));
}

void GraphForks::look(int v) {
  if (!matters_[v] || reach_.outputs()[v].size() < 2) return;
  collect(v);
  find_paths();
  keep();
  std::vector<int> devices = times_.homes(v);
  std::stable_sort(devices.begin(), devices.end(), [&](int a, int b) {
    return reach_(v, a) + times_.duration(v, a) < reach_(v, b) + times_.duration(v, b);
  });
  bool more = true;
  for (std::size_t k = 0; more && k < devices.size(); ++k)
    more = (k > 0 && too_late(devices[k])) || assume(devices[k]);
  restore();
  for (std::size_t i = 1; more && i < near_.size(); ++i) {
    for (int d = 0; d < devices_; ++d)
      kept_[i * devices_ + d] = std::max(kept_[i * devices_ + d], least_[i * devices_ + d]);
    reach_.set(near_[i], &kept_[i * devices_]);
  }
}

/// Those that can be reached soonest.
void GraphForks::collect(int v) {
  using Entry = std::tuple<Ticks, int, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  std::vector<int> seen = {v};
  near_.clear();
  local_[v] = 0;
  open.emplace(soonest_[v], reach_.rank(v), v);
  while (!open.empty() && static_cast<int>(near_.size()) <= kMostNear) {
    const int next = std::get<2>(open.top());
    open.pop();
    near_.push_back(next);
    for (const int w : reach_.outputs()[next]) {
      if (!matters_[w] || std::exchange(local_[w], 0) >= 0) continue;
      seen.push_back(w);
      open.emplace(soonest_[w], reach_.rank(w), w);
    }
  }
  for (const int w : seen) local_[w] = -1;
  std::sort(near_.begin(), near_.end(), [&](int a, int b) { return reach_.rank(a) < reach_.rank(b); });
}

/// The longest paths from the first, where every vertex is as fast as it can be.
void GraphForks::find_paths() {
  for (std::size_t i = 0; i < near_.size(); ++i) local_[near_[i]] = static_cast<int>(i);
  path_.assign(near_.size(), 0);
  for (std::size_t i = 0; i < near_.size(); ++i) {
    const int v = near_[i];
    const Ticks duration = i == 0 ? 0 : times_.duration(v, times_.costs.fastest(times_.graph.group[v]));
    for (const int w : reach_.outputs()[v])
      if (local_[w] >= 0) path_[local_[w]] = std::max(path_[local_[w]], path_[i] + duration);
  }
  for (const int v : near_) local_[v] = -1;
}

void GraphForks::keep() {
  kept_.clear();
  entries_.clear();
  kept_remote_.clear();
  for (const int v : near_) {
    kept_.insert(kept_.end(), reach_.row(v), reach_.row(v) + devices_);
    reach_.touched(v, entries_);
  }
  for (const std::size_t entry : entries_)
    kept_remote_.insert(kept_remote_.end(), reach_.remote(entry), reach_.remote(entry) + devices_);
  least_.assign(kept_.size(), kGraphNever);
}

void GraphForks::restore() {
  for (std::size_t i = 0; i < near_.size(); ++i) reach_.set(near_[i], &kept_[i * devices_]);
  for (std::size_t e = 0; e < entries_.size(); ++e)
    std::copy_n(kept_remote_.begin() + static_cast<std::ptrdiff_t>(e) * devices_, devices_,
                reach_.remote(entries_[e]));
}

/// With the first vertex there, nothing is reached before what is known to be.
bool GraphForks::too_late(int device) const {
  const Ticks end = kept_[device] + times_.duration(near_[0], device);
  for (std::size_t i = 1; i < near_.size(); ++i)
    for (const int d : times_.homes(near_[i]))
      if (end + path_[i] < least_[i * devices_ + d]) return false;
  return true;
}

/// False: no device of any vertex is reached later than before, whatever the other assumptions say.
bool GraphForks::assume(int device) {
  bool more = false;
  for (std::size_t i = 0; i < near_.size(); ++i) {
    const int v = near_[i];
    const bool together = times_.graph.group[v] == times_.graph.group[near_[0]];
    reach_.set(v, &kept_[i * devices_]);
    reach_.visit(v, together ? device : -1, false);
    for (const int d : times_.homes(v)) {
      Ticks& least = least_[i * devices_ + d];
      least = std::min(least, std::min(kGraphNever, reach_(v, d)));
      more |= i > 0 && least > kept_[i * devices_ + d];
    }
  }
  return more;
}

}  // namespace ostinato::graph
