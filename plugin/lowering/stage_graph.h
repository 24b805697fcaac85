// SPDX-License-Identifier: Apache-2.0
#pragma once
// The stages of a placement and what flows between them: the model side of lowering.
//
//   StageGraph graph = stage_graph(placement);
//   graph.stages[s].inputs            // stages whose outputs s takes
//   graph.blocks[s].forward           // block of s in the placement
//
// A stage is the set of blocks that share Block::stage: one forward and, in training, one whole backward or
// one backward_input with one backward_weight, all on the same devices: where its weights are, or, on several
// devices, the shards of its weights. All of them hold the same lanes, and run on the first. What a stage
// keeps may be offloaded between the two: by the four blocks of Kind::offload and Kind::load, one after the
// other, of which the first and the last are on a lane of its device. An edge a -> b stands where b's forward
// comes after a's forward; the gradient flows back along it, so a's backward must come after b's.

#include <vector>

#include "plugin/lowering/program.h"
#include "search/placement/placement.h"

namespace ostinato {

/// Blocks that offload what a stage keeps, one behind the other; -1: it stays.
struct OffloadBlocks {
  int out = -1;    ///< on the lane
  int freed = -1;  ///< on the device
  int taken = -1;  ///< on the device
  int back = -1;   ///< on the lane
};

struct StageGraph {
  std::vector<ProgramStage> stages;     ///< in the order of Placement::stages, else in topological order
  std::vector<StageBlocks> blocks;      ///< one per stage
  std::vector<OffloadBlocks> offloads;  ///< one per stage
  std::vector<int> stage_of;            ///< per block
};

/// Throws InputError, with the block's name, for what cannot be enforced: a kind "other", a stage whose
/// blocks are on different devices or lanes or that has no forward, two blocks of a kind, a backward that
/// does not wait for the stages that send it its gradient, offloading that is not whole, a dependency between
/// devices that carries neither activations nor gradients. O(blocks + dependencies).
StageGraph stage_graph(const Placement& placement);

}  // namespace ostinato
