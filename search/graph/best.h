// SPDX-License-Identifier: Apache-2.0
#pragma once
// The best placement and order of an operator graph that we can find: every strategy with every schedule,
// HEFT on few devices (the fastest 1, 2, 3, 4, 6, ...), where memory is short groups packed into it, then
// exhaustion where the graph is small (exact.h), else local search from the shortest of them; and a
// lower bound.
//
//   GraphBest best = best_partition(costs, {.time_limit_seconds = 10});
//   best.makespan, best.lower_bound, best.solution.assignment, best.solution.start
//
// It is never longer than any strategy of strategies.h under any schedule of simulate.h, and the
// same seed, runs and work give the same result at any number of threads, unless the time limit cuts it.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "search/graph/local_search.h"

namespace ostinato::graph {

struct GraphBestOptions {
  std::uint64_t seed = 0;
  int runs = 2;  ///< independent local searches, side by side
  /// Of each run, in vertices looked at; 0: the starts alone; -1: by size, to 2 * 10^8 for 10 s.
  std::int64_t work = -1;
  bool exhaust = true;                     ///< small graphs
  double time_limit_seconds = 0;           ///< 0: none
  int threads = 0;                         ///< 0: as many as the machine has
  std::function<bool()> interrupted = {};  ///< true: return the best so far
};

/// One start of the search.
struct GraphCandidate {
  std::string name;  ///< "critical-path + pct", "heft on the 6 fastest"
  Ticks makespan = 0;
};

struct GraphBest {
  GraphSolution solution;                  ///< empty assignment where `reason` is not
  Ticks lower_bound = 0;                   ///< proven
  std::vector<GraphCandidate> candidates;  ///< shortest first
  bool cut_by_limit = false;               ///< search or bound, by the time limit or an interrupt
  std::string reason;                      ///< no assignment was found: memory ran out
  bool infeasible = false;                 ///< and every one was tried
};

GraphBest best_partition(const GraphCosts& costs, const GraphBestOptions& options = {});

}  // namespace ostinato::graph
