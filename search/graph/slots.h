// SPDX-License-Identifier: Apache-2.0
#pragma once
// The planned work of one device, and the gaps in it. Private to HEFT.
//
// Disjoint intervals in ascending order, in blocks of at most kMostInBlock; intervals that touch are one.
// Each block knows the longest gap in front of one of its intervals, so a search passes over whole blocks.

#include <vector>

#include "search/graph/graph.h"

namespace ostinato::graph {

class GraphSlots {
 public:
  /// Earliest start >= ready of a gap of that length. O(log blocks + blocks passed + kMostInBlock).
  Ticks earliest(Ticks ready, Ticks length) const;

  /// The gap must be free. O(blocks) where a block is cut or empty, else O(kMostInBlock).
  void add(Ticks start, Ticks length);

  static constexpr std::size_t kMostInBlock = 128;

 private:
  struct Slot {
    Ticks start, end;
  };
  using Block = std::vector<Slot>;  ///< never empty

  Ticks end_before(std::size_t block) const { return block == 0 ? 0 : blocks_[block - 1].back().end; }
  std::size_t block_of(Ticks time) const;
  void measure(std::size_t block);
  void cut(std::size_t block);
  void join_next(std::size_t block, std::size_t slot);

  std::vector<Block> blocks_;
  std::vector<Ticks> first_;    ///< of each block: the start of its first interval
  std::vector<Ticks> longest_;  ///< of each block: the longest gap in front of one of its intervals
};

}  // namespace ostinato::graph
