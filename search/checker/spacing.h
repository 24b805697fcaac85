// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs of a block that memory keeps apart (docs/bounds.md, M7 and P3).

#include <vector>

#include "search/checker/graph.h"

namespace ostinato::checker {

/// Of `runs` + 1 runs of the block, one after another, the last starts at least `apart` behind the first.
struct Apart {
  int block;
  Wide runs;
  Wide apart;

  /// From the first start to the last, of n + 1 runs.
  Wide window(const Graph& graph, Wide n) const {
    return n / runs * apart + n % runs * graph.block(block).time;
  }
};

/// For all blocks with workspace on the device; nothing where its matching is not complete. O((blocks that
/// take + blocks with workspace) * (blocks + edges)).
std::vector<Apart> kept_apart(const Graph& graph, int device);

/// False for a placement so large that M7 is left out: where blocks with workspace * (blocks + edges), summed
/// over the devices with limited memory, is more than 2^28. O(blocks).
bool can_be_kept_apart(const Graph& graph);

}  // namespace ostinato::checker
