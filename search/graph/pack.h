// SPDX-License-Identifier: Apache-2.0
#pragma once
// An assignment where memory is short: what needs much of it is given a device first.
//
//   GraphPartition p = pack_groups(costs, 3, false);       // p.reason: this order found none

#include "search/graph/strategies.h"

namespace ostinato::graph {

/// Groups by memory (over the number of devices that may hold them), largest first, each to the device that
/// has the least memory left behind it; seed 0 exactly so, others with the sizes varied by up to a half.
/// `quick`: to the device that would end its work soonest instead. O(groups * (devices + log groups)).
GraphPartition pack_groups(const GraphCosts& costs, std::uint64_t seed, bool quick);

}  // namespace ostinato::graph
