// SPDX-License-Identifier: Apache-2.0
#pragma once
// An assignment where memory is short: what needs much of it is given a device first.
//
//   GraphPartition p = pack_groups(costs, 3, false);       // p.reason: this order found none

#include "search/graph/strategies.h"

namespace ostinato::graph {

/// Assigns groups by memory (over the number of devices that may hold them), largest first, each to the
/// device that has the least memory left after it. Seed 0 does just this; other seeds scale sizes by a factor
/// of up to 2. `quick`: to the device that would end its work soonest. O(groups * (devices + log groups)).
GraphPartition pack_groups(const GraphCosts& costs, std::uint64_t seed, bool quick);

}  // namespace ostinato::graph
