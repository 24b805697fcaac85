// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `ostinato partition` makes of an operator graph, and ostinato.partition_graph().
//
//   const GraphProblem problem = read_graph_problem("graph.csv", "devices.csv");
//   const GraphCosts costs = costs_of(problem);
//   const GraphOutcome outcome = assign(problem, costs, {.strategy = "critical-path"});
//   write_file("assignment.csv", assignment_csv(problem, costs, outcome));

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "search/files/json.h"
#include "search/graph/best.h"
#include "search/partition/layer_operators.h"

namespace ostinato::core {

/// What is assigned, and how its times are written.
struct GraphProblem {
  std::string source;  ///< of the graph, for messages
  graph::OperatorGraph graph;
  graph::GraphDevices devices;
  std::optional<LayerOperators> of_profile;  ///< its times are nanoseconds, its memory is an estimate

  /// Nanoseconds of a profile, else the file's units.
  Json number(graph::Ticks t) const;
};

struct GraphRequest {
  std::string strategy = "best";  ///< or one of parse_graph_strategy()
  std::string schedule = "pct";   ///< of parse_graph_schedule()
  std::uint64_t seed = 0;
  int runs = 0;                   ///< best: local searches side by side; else seeds. 0: 2 of best, else 1
  double time_limit_seconds = 0;  ///< of best with its bound, and of the bound of a strategy; 0: none
  bool published = false;
  std::function<bool()> interrupted = [] { return false; };

  bool best() const { return strategy == "best"; }
};

struct GraphOutcome {
  graph::Assignment assignment;
  std::vector<graph::Ticks> start;
  std::vector<graph::Ticks> makespans;  ///< of all runs; the shortest is the one above, and the first
  graph::Ticks lower_bound = 0;
  std::string method;
  std::vector<graph::GraphCandidate> candidates;  ///< of best
  bool cut = false;                               ///< search or bound, by the time limit or an interrupt
};

/// Throws InputError.
GraphProblem read_graph_problem(const std::string& graph, const std::string& devices);
/// The layers of a profile are the operators. Throws what check_partition() throws.
GraphProblem graph_problem(const Profile& profile, const PartitionOptions& options,
                           const std::string& source);

/// Refers to the problem. Throws InfeasibleError, with a proof; InputError where memory is an estimate.
graph::GraphCosts costs_of(const GraphProblem& problem);

/// Before anything is read. Throws InputError for a strategy or a schedule that there is not, UsageError for
/// what does not go together.
void check(const GraphRequest& request);

/// Throws InfeasibleError where every assignment was tried, InputError where none was found. What it returns
/// has passed must_hold().
GraphOutcome assign(const GraphProblem& problem, const graph::GraphCosts& costs, const GraphRequest& request);

/// Throws std::logic_error where the outcome breaks a rule of the problem, or its makespan or its bound is
/// not what it is called. Uses nothing that made it. O((V + E) log V).
void must_hold(const graph::GraphCosts& costs, const GraphOutcome& outcome);

/// "id,device,start,end", a row a vertex.
std::string assignment_csv(const GraphProblem& problem, const graph::GraphCosts& costs,
                           const GraphOutcome& outcome);
std::string graph_text(const GraphProblem& problem, const graph::GraphCosts& costs,
                       const GraphOutcome& outcome);
Json graph_json(const GraphProblem& problem, const GraphOutcome& outcome);

}  // namespace ostinato::core
