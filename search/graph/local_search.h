// SPDX-License-Identifier: Apache-2.0
#pragma once
// Local search over placement and order together: record-to-threshold acceptance with a falling threshold
// (Dueck and Scheuer, J. Comp. Phys. 90, 1990), on changes of the critical path only: nothing else can
// shorten the schedule.
//
// A change moves a group, or a stretch of the critical path, to a neighbour's device; a vertex past others on
// its device; or a vertex to another device and position. If the device lacks the memory, other groups leave
// it: for the device that the arrival came from, or for a third. The effect of a change is known from its
// window alone (sequence.h). A long sequence is searched one part at a time, with the rest held fixed: an
// accepted change costs in proportion to the part's length.

#include <cstdint>
#include <functional>
#include <vector>

#include "search/graph/graph.h"

namespace ostinato::graph {

/// An assignment, and a topological order in which every device runs its vertices.
struct GraphSolution {
  Assignment assignment;
  std::vector<int> order;
  std::vector<Ticks> start;  ///< of each vertex
  Ticks makespan = 0;
};

/// How often which kind of change is tried: stretches and groups help where devices are crowded, single
/// vertices and fast devices where the critical path is long.
enum class GraphMoves { groups, vertices };

struct GraphSearchOptions {
  GraphMoves moves = GraphMoves::groups;
  std::uint64_t seed = 0;
  std::int64_t work = 0;            ///< vertices looked at until the search ends
  Ticks lower_bound = 0;            ///< where it is met the search ends
  std::function<bool()> stop = {};  ///< asked now and then; the best so far is returned
};

/// Never worse than `start` (only its order counts). The same seed and work give the same solution.
GraphSolution improve(const GraphCosts& costs, const GraphSolution& start, const GraphSearchOptions& options);

}  // namespace ostinato::graph
