// SPDX-License-Identifier: Apache-2.0
#pragma once
// Discrete-event simulation of an assigned operator graph: when does each vertex run, if every device picks
// the next of its ready vertices by a scheduling strategy (Mayer et al., arXiv 1711.01912, section 4)?
//
//   GraphTimeline t = simulate(costs, assignment, GraphSchedule::pct);
//   double units = to_units(t.makespan);                            // 96.5, say
//
// At an instant, everything that ends or arrives is taken in first; then each free device picks. A device
// never waits while it has a ready vertex.

#include <string>
#include <string_view>
#include <vector>

#include "search/graph/graph.h"

namespace ostinato::graph {

enum class GraphSchedule {
  fifo,  ///< first ready, first run
  pct,   ///< path computation time: longest remaining time to a sink, transfers included
  msr,   ///< maximum successor rank: see below
};
// MSR scores a ready vertex: a point for each successor; one more where it is on another device; then one
// more if this is its last missing input, and five more if the other device then has nothing ready. Ties by
// PCT, then by index.

const char* to_string(GraphSchedule schedule);
/// Throws InputError ("did you mean") for another word than fifo, pct, msr.
GraphSchedule parse_graph_schedule(std::string_view word);

/// When a tensor leaves for another device. immediate, as the paper says: when its vertex ends, at no cost to
/// the device. operations, as the authors' program does: each transfer is a vertex of 10 operations on the
/// sending device, which picks it by the same strategy (and PCT counts 10 more on the receiving one).
/// There what a vertex, or an arrival, makes ready becomes so in the order of a set, which `seed` shuffles
/// (0: by index); among what a strategy has equal, the first that became ready runs first.
enum class GraphSends { immediate, operations };
inline constexpr std::int64_t kSendOperations = 10;

struct GraphTimeline {
  Ticks makespan = 0;
  std::vector<Ticks> start;  ///< of each vertex
  std::vector<Ticks> busy;   ///< of each device, without waiting
};

/// FIFO and PCT: O((V + E) log V). MSR looks at every ready vertex at each pick.
GraphTimeline simulate(const GraphCosts& costs, const Assignment& assignment, GraphSchedule schedule,
                       GraphSends sends = GraphSends::immediate, std::uint64_t seed = 0);

/// As above, where each device picks the ready vertex of lowest `rank`, ties by index. Sends that are
/// operations go first.
GraphTimeline simulate_ranked(const GraphCosts& costs, const Assignment& assignment,
                              const std::vector<Ticks>& rank, GraphSends sends = GraphSends::immediate,
                              std::uint64_t seed = 0);

/// Longest time from the start of each vertex to the end of a sink, with this assignment, if no device were
/// ever busy with something else. O(V + E).
std::vector<Ticks> remaining_times(const GraphCosts& costs, const Assignment& assignment,
                                   GraphSends sends = GraphSends::immediate);

/// "" where `start` is a valid schedule of the assignment: inputs arrive in time and no device runs two
/// vertices at once. Independent of the simulation: it only sorts and compares. O((V + E) log V).
std::string check_timeline(const GraphCosts& costs, const Assignment& assignment,
                           const std::vector<Ticks>& start);

/// For printing only.
inline double to_units(Ticks ticks) {
  return static_cast<double>(ticks) / static_cast<double>(kTicksPerUnit);
}

}  // namespace ostinato::graph
