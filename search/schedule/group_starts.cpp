// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/group_starts.h"

#include <algorithm>

namespace ostinato {
namespace {

/// Longest paths of the arcs `longest` - extent, from any group.
class Paths {
 public:
  Paths(const std::vector<Nanoseconds>& longest, int groups, Nanoseconds extent)
      : longest_(longest), groups_(groups), extent_(extent), start(groups, 0), before_(groups, -1) {}

  /// 0 where there are starts; else the mean length of a circle that allows none, rounded up.
  Nanoseconds refuted() {
    int changed = -1;
    for (int round = 0; round <= groups_; ++round) {
      changed = relax();
      if (changed < 0) return 0;
    }
    return mean_of_circle(changed);
  }

 private:
  Nanoseconds length(int from, int to) const {
    return longest_[static_cast<std::size_t>(from) * groups_ + to];
  }

  /// The last group that begins later now; -1: none does.
  int relax() {
    int changed = -1;
    for (int from = 0; from < groups_; ++from) {
      for (int to = 0; to < groups_; ++to) {
        const Nanoseconds path = length(from, to);
        if (path == kNoPath || start[from] + path - extent_ <= start[to]) continue;
        start[to] = start[from] + path - extent_;
        before_[to] = from;
        changed = to;
      }
    }
    return changed;
  }

  Nanoseconds mean_of_circle(int group) const {
    for (int i = 0; i < groups_; ++i) group = before_[group];  // into the circle
    Nanoseconds sum = 0, arcs = 0;
    int at = group;
    do {
      sum += length(before_[at], at);
      ++arcs;
      at = before_[at];
    } while (at != group);
    return (sum + arcs - 1) / arcs;
  }

  const std::vector<Nanoseconds>& longest_;
  const int groups_;
  const Nanoseconds extent_;

 public:
  std::vector<Nanoseconds> start;

 private:
  std::vector<int> before_;
};

}  // namespace

GroupStarts least_extent(const std::vector<Nanoseconds>& longest, int groups) {
  GroupStarts least;
  for (int g = 0; g < groups; ++g)
    least.extent = std::max(least.extent, longest[static_cast<std::size_t>(g) * groups + g]);
  for (;;) {
    Paths paths(longest, groups, least.extent);
    const Nanoseconds more = paths.refuted();
    if (more == 0) {
      least.start = std::move(paths.start);
      return least;
    }
    least.extent = more;
  }
}

int groups_of(Objective objective, const Instance& in, int micro_batches) {
  switch (objective) {
    case Objective::makespan:
      return 1;
    case Objective::span:
      return in.devices();
    case Objective::latency:
      return micro_batches;
  }
  return 1;
}

}  // namespace ostinato
