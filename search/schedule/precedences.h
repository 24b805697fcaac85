// SPDX-License-Identifier: Apache-2.0
#pragma once
// Longest paths between all pairs of steps, while a search adds arcs and takes them back.
//
//   Precedences paths(steps);
//   const std::size_t mark = paths.mark();
//   if (!paths.add(a, b, 7)) ...              // b starts 7 after a or later: a circle, so it cannot
//   paths.take_back(mark);
//
// Arcs may be negative: with those a step is due within a time of another one. Source: Dechter, Meiri, Pearl
// (1991), simple temporal networks.

#include <cstdint>
#include <utility>
#include <vector>

#include "search/schedule/group_starts.h"

namespace ostinato {

class Precedences {
 public:
  explicit Precedences(int steps);

  /// kNoPath: none. From a step to itself 0.
  Nanoseconds longest(int from, int to) const { return longest_[at(from, to)]; }
  /// False where the arc closes a circle of positive length; nothing is added then. O(steps^2).
  bool add(int from, int to, Nanoseconds length);

  std::size_t mark() const { return trail_.size(); }
  void take_back(std::size_t mark);

  /// Paths that were looked at.
  std::int64_t work() const { return work_; }

 private:
  std::size_t at(int from, int to) const { return static_cast<std::size_t>(from) * steps_ + to; }

  int steps_;
  std::vector<Nanoseconds> longest_;
  std::vector<std::pair<std::size_t, Nanoseconds>> trail_;  ///< what was overwritten
  std::vector<int> later_;                                  ///< scratch of add()
  std::int64_t work_ = 0;
};

}  // namespace ostinato
