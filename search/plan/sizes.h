// SPDX-License-Identifier: Apache-2.0
#pragma once
// Micro-batches of unequal size: what each changes about the blocks of a placement.
//
//   std::vector<MicroBatch> sizes = {scaled(placement, 700, 1024), scaled(placement, 1500, 1024)};
//   const Placement all = unrolled(placement, sizes);          // one block for every (block, micro-batch)
//
// `unrolled()` turns N unequal micro-batches into one micro-batch of a larger placement, so the code that
// checks, replays or draws a plan needs no special case. docs/formats.md has the files.

#include <vector>

#include "search/placement/placement.h"

namespace ostinato {

/// One micro-batch, by block of the placement in its order.
struct MicroBatch {
  std::vector<Nanoseconds> times;  ///< >= 0
  std::vector<Bytes> memory;       ///< as Block::memory
  std::vector<Bytes> workspace;    ///< >= 0
  std::vector<Bytes> bytes;        ///< of every input: blocks in order, the inputs of each in order

  friend bool operator==(const MicroBatch&, const MicroBatch&) = default;
};

/// As the placement is written.
MicroBatch as_written(const Placement& placement);

/// Times, memory, workspace and bytes of the placement times `size` / `of`, to the nearest integer, halves up
/// (what is given back as much as what was taken: a block's memory is rounded by its amount). `of` >= 1.
/// What leaves int64 saturates.
MicroBatch scaled(const Placement& placement, std::int64_t size, std::int64_t of);

/// Throws InputError (no file) where a micro-batch has not one figure for each block and input, or one that
/// is out of range, or where all together overflow (docs/formats.md).
void check_sizes(const Placement& placement, const std::vector<MicroBatch>& sizes);

/// Block b of micro-batch i is block i * blocks + b, named "b.name#i"; stages are left out.
/// The sizes must be checked.
Placement unrolled(const Placement& placement, const std::vector<MicroBatch>& sizes);

}  // namespace ostinato
