// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/graph_partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "bindings/core/usage_error.h"
#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/graph/bound.h"
#include "search/graph/csv.h"
#include "search/graph/limit.h"
#include "search/graph/simulate.h"
#include "search/graph/strategies.h"
#include "search/placement/quantity.h"

namespace ostinato::core {

using namespace graph;
namespace {

/// In four digits, or all those before the point.
std::string units_text(Ticks t) {
  return t < 1000 * kTicksPerUnit ? fmt::format("{:.4g}", to_units(t)) : fmt::format("{:.0f}", to_units(t));
}

std::string text_of(const GraphProblem& problem, Ticks t) {
  return fmt::format("{:>10}",
                     problem.of_profile ? format_time(problem.of_profile->nanoseconds(t)) : units_text(t));
}

/// "12.345678901"; of a profile whole nanoseconds.
std::string exact(const GraphProblem& problem, Ticks t) {
  return problem.of_profile ? std::to_string(problem.of_profile->nanoseconds(t))
                            : fmt::format("{}.{:09}", t / kTicksPerUnit, t % kTicksPerUnit);
}

[[noreturn]] void refuse(const GraphProblem& problem, const std::string& reason) {
  throw InputError(problem.source, 0,
                   fmt::format("no assignment was found: {}. Give the devices more memory", reason));
}

GraphOutcome run_best(const GraphProblem& problem, const GraphCosts& costs, const GraphRequest& request) {
  GraphBestOptions options;
  options.seed = request.seed;
  options.time_limit_seconds = request.time_limit_seconds;
  options.interrupted = request.interrupted;
  if (request.runs > 0) options.runs = request.runs;
  GraphBest best = best_partition(costs, options);
  if (best.infeasible && !problem.of_profile)
    throw InfeasibleError(
        fmt::format("{}: no assignment fits the devices' memory (all were tried)", problem.source));
  if (!best.reason.empty()) refuse(problem, best.reason);
  return {std::move(best.solution.assignment),
          std::move(best.solution.start),
          {best.solution.makespan},
          best.lower_bound,
          "best",
          std::move(best.candidates),
          best.cut_by_limit};
}

GraphOutcome run_strategy(const GraphProblem& problem, const GraphCosts& costs, const GraphRequest& request) {
  const GraphStrategy strategy = parse_graph_strategy(request.strategy);
  const GraphSchedule schedule = parse_graph_schedule(request.schedule);
  const GraphSends sends = request.published ? GraphSends::operations : GraphSends::immediate;
  const bool own_order = strategy == GraphStrategy::heft;
  GraphOutcome outcome;
  outcome.method =
      own_order ? "heft in its own order" : fmt::format("{} + {}", request.strategy, request.schedule);
  for (int run = 0; run < std::max(1, request.runs); ++run) {
    const std::uint64_t seed = request.seed + static_cast<std::uint64_t>(run);
    const GraphPartition p =
        partition(costs, strategy, {.seed = seed, .published_program = request.published});
    if (!p.reason.empty()) refuse(problem, p.reason);
    GraphTimeline t = own_order ? simulate_ranked(costs, p.assignment, p.planned, sends, seed)
                                : simulate(costs, p.assignment, schedule, sends, seed);
    if (outcome.makespans.empty() || t.makespan < outcome.makespans.front()) {
      outcome.assignment = p.assignment;
      outcome.start = std::move(t.start);
      outcome.makespans.insert(outcome.makespans.begin(), t.makespan);
    } else {
      outcome.makespans.push_back(t.makespan);
    }
  }
  Limit limit(request.time_limit_seconds, request.interrupted);
  outcome.lower_bound = graph_lower_bound(costs, [&] { return outcome.cut = limit.reached(); });
  return outcome;
}

Ticks mean(const std::vector<Ticks>& makespans) {
  __int128 sum = 0;
  for (const Ticks m : makespans) sum += m;
  return static_cast<Ticks>(sum / static_cast<std::int64_t>(makespans.size()));
}

int devices_used(const GraphOutcome& o) {
  std::vector<int> devices = o.assignment;
  std::sort(devices.begin(), devices.end());
  return static_cast<int>(std::unique(devices.begin(), devices.end()) - devices.begin());
}

double gap_percent(const GraphOutcome& o) {
  if (o.lower_bound == 0) return 0;
  return 100 * (to_units(o.makespans.front()) / to_units(o.lower_bound) - 1);
}

}  // namespace

Json GraphProblem::number(Ticks t) const {
  return of_profile ? Json(of_profile->nanoseconds(t)) : Json(to_units(t));
}

GraphProblem read_graph_problem(const std::string& graph, const std::string& devices) {
  return {graph, read_graph_csv(graph), read_devices_csv(devices), std::nullopt};
}

GraphProblem graph_problem(const Profile& profile, const PartitionOptions& options,
                           const std::string& source) {
  check_partition(profile, options);
  GraphProblem problem;
  problem.source = source;
  problem.of_profile.emplace(chain::Model(profile, options));
  problem.graph = problem.of_profile->graph();
  problem.devices = problem.of_profile->devices();
  return problem;
}

GraphCosts costs_of(const GraphProblem& problem) {
  try {
    return GraphCosts(problem.graph, problem.devices);
  } catch (const InfeasibleError& error) {
    if (problem.of_profile) throw InputError(problem.source, 0, error.what());
    throw;
  }
}

void check(const GraphRequest& request) {
  try {
    if (!request.best()) parse_graph_strategy(request.strategy);
    parse_graph_schedule(request.schedule);
  } catch (const InputError& error) {
    throw UsageError(error.what());
  }
  if (request.best() && request.published)
    throw UsageError(
        "--published-program cannot be combined with best, a strategy that the authors' program does not "
        "have");
}

GraphOutcome assign(const GraphProblem& problem, const GraphCosts& costs, const GraphRequest& request) {
  GraphOutcome outcome =
      request.best() ? run_best(problem, costs, request) : run_strategy(problem, costs, request);
  must_hold(costs, outcome);
  return outcome;
}

void must_hold(const GraphCosts& costs, const GraphOutcome& o) {
  std::string broken = check_assignment(costs, o.assignment);
  if (broken.empty()) broken = check_timeline(costs, o.assignment, o.start);
  Ticks end = 0;
  for (int v = 0; broken.empty() && v < costs.graph().size(); ++v)
    end = std::max(end, o.start[v] + costs.execution(v, o.assignment[v]));
  if (broken.empty() && o.makespans.front() != end) broken = "the last vertex does not end at the makespan";
  if (broken.empty() && o.lower_bound > end) broken = "the lower bound is above the makespan";
  if (!broken.empty())
    throw std::logic_error(
        fmt::format("the assignment that was found is wrong: {}. Please report it, with the files", broken));
}

std::string assignment_csv(const GraphProblem& problem, const GraphCosts& costs, const GraphOutcome& o) {
  std::string text = "id,device,start,end\n";
  for (int v = 0; v < costs.graph().size(); ++v)
    text += fmt::format("{},{},{},{}\n", costs.graph().ids[v], costs.devices().devices[o.assignment[v]].id,
                        exact(problem, o.start[v]),
                        exact(problem, o.start[v] + costs.execution(v, o.assignment[v])));
  return text;
}

Json graph_json(const GraphProblem& problem, const GraphOutcome& o) {
  const auto [low, high] = std::minmax_element(o.makespans.begin(), o.makespans.end());
  Json json = {{"method", o.method},
               {"makespan", problem.number(*low)},
               {"lower_bound", problem.number(o.lower_bound)},
               {"gap_percent", gap_percent(o)},
               {"devices_used", devices_used(o)},
               {"cut_by_limit", o.cut}};
  if (o.makespans.size() > 1)
    json["runs"] = {{"count", o.makespans.size()},
                    {"mean", problem.number(mean(o.makespans))},
                    {"highest", problem.number(*high)}};
  for (const GraphCandidate& c : o.candidates)
    json["starts"].push_back({{"name", c.name}, {"makespan", problem.number(c.makespan)}});
  return json;
}

std::string graph_text(const GraphProblem& problem, const GraphCosts& costs, const GraphOutcome& o) {
  const auto [low, high] = std::minmax_element(o.makespans.begin(), o.makespans.end());
  std::string text =
      fmt::format("{}: {}, {} on {} of {}\n", o.method,
                  costs.graph().size() == 1 ? "1 vertex" : fmt::format("{} vertices", costs.graph().size()),
                  counted(costs.graph().successors.values().size(), "edge"), devices_used(o),
                  counted(costs.device_count(), "device"));
  text += fmt::format("  makespan     {}\n", text_of(problem, *low));
  if (o.makespans.size() > 1)
    text += fmt::format("  {} runs       mean{}, longest{}\n", o.makespans.size(),
                        text_of(problem, mean(o.makespans)), text_of(problem, *high));
  text += fmt::format("  proven bound {}   gap {:.1f} %{}\n", text_of(problem, o.lower_bound), gap_percent(o),
                      problem.of_profile ? "   for these operators; transfers and speeds are estimates" : "");
  for (std::size_t i = 0; i < std::min<std::size_t>(o.candidates.size(), 5); ++i)
    text += fmt::format("  {} {}   {}\n", i == 0 ? "starts from " : "            ",
                        text_of(problem, o.candidates[i].makespan), o.candidates[i].name);
  if (o.cut) text += "  stopped early: this is the best so far\n";
  return text;
}

}  // namespace ostinato::core
