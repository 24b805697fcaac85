#pragma once
// Path lengths through an operator graph.

#include <vector>

#include "search/partition/graph.h"

namespace ostinato {

/// Importance of a vertex: operations on the longest path through it, itself counted once. O(V + E).
std::vector<std::int64_t> path_operations(const OperatorGraph& graph);

/// HEFT's upward rank (Topcuoglu, Hariri, Wu 2002): the longest path from the vertex to a sink, executions at
/// the mean speed of all devices and transfers at the mean rate between two. O(V + E). The authors' program
/// takes the mean rate from the first device alone, to itself (at rate 0) included: `published_program`.
std::vector<Ticks> upward_ranks(const GraphCosts& costs, bool published_program = false);

/// A longest path by upward rank, from its source; ties by index. O(V + E).
std::vector<int> critical_path(const OperatorGraph& graph, const std::vector<Ticks>& upward);

}  // namespace ostinato
