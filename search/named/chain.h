// SPDX-License-Identifier: Apache-2.0
#pragma once
// The structures that published schedules are written for: a chain of stages, each on one device, every
// device with the same number of chunks; or two such chains that run through the same devices in opposite
// directions.
//
//   ChainOrNot found = find_chain(placement);
//   if (!found.chain) say(found.why_not);      // "block embed.F holds 4 devices"
//   else found.chain->stages[3].rank           // which place in the pipeline runs the fourth stage
//
// They are read off blocks and dependencies; names of stages only tie a forward to its backward. Where
// devices have lanes (lanes.h), the stages that follow each other on a device and its lanes are one stage of
// the chain, in parts: attention, dispatch, experts, combine.

#include <optional>
#include <string>
#include <vector>

#include "search/placement/placement.h"

namespace ostinato {

/// The blocks of a stage of a chain, and where they run.
struct ChainPlace : StageBlocks {
  int rank = 0;                         ///< place of its device in Chain::devices
  int chunk = 0;                        ///< how many earlier stages the same device runs
  std::vector<StageBlocks> parts = {};  ///< in model order; without lanes one, which is also the base
};

/// What a placement was found to be. single: one chunk a device. looped: stage s on rank s mod D. wave: there
/// and back again (a V for two chunks).
enum class ChainShape { single, looped, wave, irregular };

struct Chain {
  std::vector<int> devices;  ///< in the order in which the chain first reaches them
  std::vector<ChainPlace> stages;
  int chunks = 1;  ///< per device
  ChainShape shape = ChainShape::single;
  bool training = true;  ///< every stage has a backward
  bool split = false;    ///< every stage has a weight half
  bool lanes = false;    ///< some device has lanes; stages then have parts instead of blocks

  int depth() const { return static_cast<int>(devices.size()); }

  /// The stage that is chunk `chunk` of `rank`. O(stages).
  int stage_of(int rank, int chunk) const;
};

struct ChainOrNot {
  std::optional<Chain> chain;
  std::string why_not;  ///< in words, where there is no chain
};

/// Skip edges are admitted: between stages of a chain they add nothing to the order. O(blocks log blocks +
/// edges).
ChainOrNot find_chain(const Placement& placement);

/// X: two chains of one stage per device that share nothing but the devices, an even number of them. A
/// micro-batch of the placement is one of each direction.
struct TwoWay {
  Chain down;
  Chain up;  ///< up.devices is down.devices backwards

  int depth() const { return down.depth(); }
};

struct TwoWayOrNot {
  std::optional<TwoWay> chains;
  std::string why_not;
};

/// O(blocks log blocks + edges).
TwoWayOrNot find_two_way(const Placement& placement);

}  // namespace ostinato
