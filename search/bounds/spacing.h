// SPDX-License-Identifier: Apache-2.0
#pragma once
// How far apart the runs of a block are, where what other micro-batches hold leaves it no room
// (docs/bounds.md, M7). So the workspace of a large head keeps micro-batches from waiting in the stages
// before it.
//
//   for (const Spacing& s : spacings(instance, match_all(instance)))
//     bound = std::max(bound, s.makespan(instance, micro_batches));

#include <vector>

#include "search/bounds/matching.h"
#include "search/placement/instance.h"

namespace ostinato {

/// Of any `runs` + 1 runs of `block` in a row, the last starts no earlier than `apart` after the first.
struct Spacing {
  int block;
  std::int64_t runs;
  Nanoseconds apart;

  /// From the first start to the last of n + 1 runs in a row, at least; 2^61 where it is more.
  Nanoseconds window(const Instance& instance, std::int64_t n) const;
  /// M7
  Nanoseconds makespan(const Instance& instance, std::int64_t micro_batches) const;
};

/// Those that say more than the block's own time does; none for large placements (docs/bounds.md).
/// O((takers + blocks with workspace) * (blocks + edges)), of the devices with limited memory.
std::vector<Spacing> spacings(const Instance& instance, const Matchings& held);

}  // namespace ostinato
