// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a placement must be beyond its syntax, in one place for all that make one.

#include <string>
#include <vector>

#include "search/placement/placement.h"

namespace ostinato {

/// Where the parts of a placement stand in its file, for messages; empty where it comes from no file.
struct PlacementLines {
  std::vector<int> blocks;  ///< line of each block
  std::vector<int> stages;  ///< line of each of Placement::stages
};

/// Throws InputError, with the line of the block or stage, where
///  - there are no blocks,
///  - a block names an input twice, or blocks wait for each other (the cycle is named),
///  - the time of one micro-batch run on a single device with all its transfers, or all memory together, is
///    beyond int64: below that, no sum over one micro-batch overflows,
///  - a block on a lane takes or gives memory,
///  - `stages` is neither empty nor exactly the stages of the blocks, or its layer ranges overlap in part or
///    leave a gap (two stages may run the same layers: two directions of a bidirectional pipeline).
/// Asserts that every index is in range. O(n log n), n = blocks + dependencies with their device pairs.
void check_placement(const Placement& placement, const PlacementLines& lines, const std::string& file);

/// Throws InputError where the times of n micro-batches with all transfers reach 2^60 nanoseconds, or their
/// memory with what a device holds always 2^62 bytes: below that, sums of a few of these stay in int64.
/// O(blocks + dependencies with their device pairs).
void check_totals(const Placement& placement, int micro_batches, const std::string& file);

}  // namespace ostinato
