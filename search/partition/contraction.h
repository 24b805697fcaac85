// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layers that are joined, so that a graph of layers has fewer downsets.
//
//   groups = contract(graph, groups, times, fixed, 500);   // no more than 500 ns together
//
// Two groups are joined where that makes no circle: one that reads from a single group with that group, one
// that a single group reads with its reader, and two that read from and are read by the same groups.

#include <vector>

#include "search/placement/placement.h"
#include "search/profile/layer_graph.h"

namespace ostinato::chain {

/// `times` of the groups; `fixed` groups stay as they are. Joined groups take at most `most` together; each
/// is sorted, and groups are in the order of their first layers. O(groups^3) in the worst case.
std::vector<std::vector<int>> contract(const LayerGraph& graph, std::vector<std::vector<int>> groups,
                                       std::vector<Nanoseconds> times, std::vector<bool> fixed,
                                       Nanoseconds most);

}  // namespace ostinato::chain
