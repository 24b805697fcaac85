// SPDX-License-Identifier: Apache-2.0
#pragma once
// The partitioning strategies of Mayer et al. (arXiv 1711.01912, section 3): which device for which vertex.
//
//   GraphPartition p = partition(costs, GraphStrategy::critical_path);
//   if (!p.reason.empty()) ...                                      // memory ran out, p.assignment is empty
//   GraphTimeline t = simulate(costs, p.assignment, GraphSchedule::pct);
//
// Groups move as one, and go only where kind and memory allow. Where the paper leaves the order of vertices
// open, seed 0 takes the file's order and any other seed shuffles it.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "search/graph/graph.h"

namespace ostinato::graph {

enum class GraphStrategy {
  hash,           ///< groups to devices in turn
  batch_split,    ///< by importance, in as many equal batches as devices; the k-th to the k-th fastest
  critical_path,  ///< the critical path to the fastest device, the rest to the least loaded
  mite,           ///< least memory x importance x traffic x execution time
  dfs,            ///< depth first from the longest paths; least traffic x execution time
  heft,           ///< by upward rank, to the earliest finish, with insertion
};

inline constexpr std::array<GraphStrategy, 6> kGraphStrategies = {
    GraphStrategy::hash, GraphStrategy::batch_split, GraphStrategy::critical_path,
    GraphStrategy::mite, GraphStrategy::dfs,         GraphStrategy::heft};

const char* to_string(GraphStrategy strategy);
/// Throws InputError ("did you mean") for an unknown word; "best" is not a strategy of this list.
GraphStrategy parse_graph_strategy(std::string_view word);

struct StrategyOptions {
  std::uint64_t seed = 0;
  /// As the authors' program does it instead of as the paper says, to compare with its results: Batch Split
  /// takes the devices in the order of the file; Critical Path skips every second device where the first does
  /// not fit; MITE and DFS round transfer times down to whole units and count one transfer to successors;
  /// HEFT waits for the first input instead of the last, and for none that is on the same device; both rank
  /// by the mean rate of one device.
  bool published_program = false;
};

struct GraphPartition {
  Assignment assignment;       ///< empty where `reason` is not
  std::vector<Ticks> planned;  ///< HEFT: the planned end of each vertex, its own order; else empty
  std::string reason;  ///< why no assignment was found: memory ran out (another strategy may find one)
};

/// O((V + E) * devices), and O(V log V) to sort; HEFT also walks the gaps after each ready time.
GraphPartition partition(const GraphCosts& costs, GraphStrategy strategy,
                         const StrategyOptions& options = {});

/// HEFT on a part of the devices (1: may be used). Groups that fit none of these may go to any device.
GraphPartition partition_heft(const GraphCosts& costs, const std::vector<char>& usable,
                              const StrategyOptions& options = {});

}  // namespace ostinato::graph
