// SPDX-License-Identifier: Apache-2.0
#pragma once
// Path lengths through an operator graph.

#include <vector>

#include "search/graph/graph.h"

namespace ostinato::graph {

/// Importance of a vertex: operations on the longest path through it, itself counted once. O(V + E).
std::vector<std::int64_t> path_operations(const OperatorGraph& graph);

/// HEFT's upward rank (Topcuoglu, Hariri, Wu 2002): the longest path from the vertex to a sink, executions at
/// the mean speed of all devices and transfers at the mean rate between two. O(V + E).
std::vector<Ticks> upward_ranks(const GraphCosts& costs);

struct PublishedRanks {
  std::vector<Ticks> rank;
  std::vector<int> next;  ///< the successor that the rank comes from, -1: none
};

/// The rank in the authors' program. The mean rate is the first device's alone, including to itself (at rate
/// 0). A vertex that is done tells its predecessors: they take its rank and the transfer if the rank without
/// the transfer is above theirs; one that has heard from all is done at once. So a longer path is left out
/// where a shorter one, told first, is ahead by its transfer: it depends on the order of sets, which `seed`
/// shuffles (0: by index). O(V + E).
PublishedRanks published_upward_ranks(const GraphCosts& costs, std::uint64_t seed);

/// A longest path by upward rank, from its source; ties by index. O(V + E).
std::vector<int> critical_path(const OperatorGraph& graph, const std::vector<Ticks>& upward);

}  // namespace ostinato::graph
