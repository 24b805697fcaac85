// SPDX-License-Identifier: Apache-2.0
#pragma once
// Longest paths between all pairs of items, while a search adds constraints and takes them back: the items of
// a repetend (repetend/modulo.h), or the steps of a whole schedule (order_search.h).
//
//   LongestPaths paths(3);
//   paths.add(0, 1, 5);                        // T(1) - T(0) >= 5
//   const std::size_t mark = paths.mark();
//   paths.add(1, 0, -4);                       // false: T(1) - T(0) <= 4 contradicts it
//   paths.undo(mark);
//
// Source: Dechter, Meiri, Pearl (1991), simple temporal networks.

#include <cstdint>
#include <vector>

#include "search/schedule/group_starts.h"

namespace ostinato {

/// Constraints T(y) - T(x) >= weight over `items` unknowns, as a dense matrix with undo: items^2 entries.
class LongestPaths {
 public:
  explicit LongestPaths(int items);
  /// The largest w for which T(y) - T(x) >= w follows; kNoPath where nothing does.
  Nanoseconds get(int x, int y) const { return length_[index(x, y)]; }
  /// False if a positive cycle would arise; then nothing is added. O(items^2).
  bool add(int x, int y, Nanoseconds weight);
  std::int64_t work() const { return work_; }  ///< entries looked at so far
  std::size_t mark() const { return changes_.size(); }
  void undo(std::size_t mark);
  void keep() { changes_.clear(); }  ///< what was added so far is not undone

 private:
  struct Change {
    std::size_t at;
    Nanoseconds before;
  };
  std::size_t index(int x, int y) const { return static_cast<std::size_t>(x) * items_ + y; }
  int items_;
  std::vector<Nanoseconds> length_;
  std::vector<Change> changes_;
  std::vector<int> sources_, targets_;
  std::int64_t work_ = 0;
};

}  // namespace ostinato
