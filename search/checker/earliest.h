// SPDX-License-Identifier: Apache-2.0
#pragma once
// The earliest start of every step, in one direction of time (docs/bounds.md, W1 to W5): the two directions
// together are the windows of checker/windows.h.
//
//   const EarliestStarts forwards = earliest_starts(graph, 8, {.backwards = false});
//   forwards.start[i * blocks + b]       // no schedule starts micro-batch i of block b sooner
//
// With an origin, times count from the first start of that device, and only the steps that must wait for it
// have one.

#include <cstdint>
#include <vector>

#include "search/checker/backlog.h"
#include "search/checker/graph.h"

namespace ostinato::checker {

/// Times count from the start of the schedule, backwards from its end.
inline constexpr int kNoDevice = -1;

struct Direction {
  bool backwards = false;  ///< edges are turned round, and what gives back takes
  int origin = kNoDevice;
};

struct EarliestStarts {
  std::vector<Nanoseconds> start;  ///< of micro-batch i of block b at i * blocks + b; kUnknown
  std::int64_t work = 0;           ///< steps looked at: the same on every machine
};

/// W3 and W4 look at K micro-batches one by one, with K^2 * pairs of related blocks at most this.
inline constexpr Wide kMostEarliestWork = 1 << 24;

/// All sums of times must fit (checker/windows.h). O(blocks * (blocks + edges)), and for the K micro-batches
/// that are looked at O(K * pairs * steps that are under way), at most kMostEarliestWork; O(1) for each
/// further step.
EarliestStarts earliest_starts(const Graph& graph, int n, Direction direction);

}  // namespace ostinato::checker
