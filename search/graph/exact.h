// SPDX-License-Identifier: Apache-2.0
#pragma once
// The shortest schedule of a small operator graph, by exhaustion: depth first over what runs next and where,
// each vertex as early as it can behind those placed before it.
//
//   ExactPartition exact = exact_partition(costs, {.below = known.makespan, .nodes = 100'000});
//   if (exact.complete && !exact.solution) ...     // nothing is shorter than `known`
//
// A node is dropped where the longest path through some vertex that is left (its earliest start on each
// device, and the least time from there to the end), or the work that is left over what the devices have
// left, reaches `below`; where the memory that is left cannot hold the rest; and where another node with the
// same vertices done, the same devices of what is still needed and the same memory had every device free and
// every such output ready no later (whatever follows here could follow there).

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

#include "search/graph/graph.h"
#include "search/graph/local_search.h"

namespace ostinato::graph {

struct ExactOptions {
  Ticks below = std::numeric_limits<Ticks>::max();  ///< look for shorter schedules only
  std::int64_t nodes = 100'000;                     ///< partial schedules, at most
  std::function<bool()> stop = {};                  ///< asked now and then: give up
};

struct ExactPartition {
  std::optional<GraphSolution> solution;  ///< the shortest found; none: nothing shorter than `below`
  bool complete = false;                  ///< every schedule was looked at, so that is proved
};

/// Larger problems are not tried: `complete` is false at once.
inline constexpr int kMostExactVertices = 20, kMostExactDevices = 8;
bool may_be_exhausted(const GraphCosts& costs);

/// O(nodes * (vertices + edges) * devices^2) at most. The same input gives the same result.
ExactPartition exact_partition(const GraphCosts& costs, const ExactOptions& options = {});

}  // namespace ostinato::graph
