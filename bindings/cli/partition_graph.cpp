// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/partition_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "bindings/cli/command_line.h"
#include "bindings/cli/interrupt.h"
#include "bindings/cli/profile_arguments.h"
#include "bindings/cli/run_search.h"
#include "search/files/error.h"
#include "search/files/file.h"
#include "search/graph/best.h"
#include "search/graph/bound.h"
#include "search/graph/csv.h"
#include "search/graph/simulate.h"
#include "search/graph/strategies.h"
#include "search/partition/layer_operators.h"
#include "search/placement/quantity.h"
#include "search/profile/profile_json.h"

namespace ostinato::cli {

using namespace graph;
namespace {

struct Arguments {
  std::string graph, devices, output, memory = "unlimited";
  std::string strategy = "best", schedule = "pct";
  std::uint64_t seed = 0;
  int runs = 0;
  double time_limit = 0;
  bool published = false, incomplete = false, inference = false, strict = false;

  explicit Arguments(CommandLine& line) {
    line.text("graph", graph, "Operator graph (CSV), or a profile (JSON) whose layers are the operators")
        .required()
        .type_name("GRAPH");
    line.text("--devices", devices,
              "Devices and rates between them (CSV); for a profile how many, or a device file (TOML)")
        .required()
        .type_name("DEVICES");
    line.text("--device-memory", memory, "For a profile: memory of each device, with a unit: 40GiB");
    line.flag("--allow-incomplete", incomplete, "Accept a profile that lost events");
    line.flag("--inference", inference, "For a profile: the forwards alone are operators");
    line.text("--strategy", strategy,
              "hash, batch-split, critical-path, mite, dfs, heft or best (the default)");
    line.text("--schedule", schedule, "fifo, pct (the default) or msr; heft and best bring their own order");
    line.whole_number("--seed", seed, {0, std::numeric_limits<std::int64_t>::max()},
                      "Of the search, and of the orders that a strategy leaves open; 0 by default");
    line.whole_number("--runs", runs, {1, 10'000},
                      "best: local searches side by side (2); else: seeds, for the mean and the spread (1)");
    line.decimal("--time-limit", time_limit, {0, 100'000'000},
                 "Seconds after which best stops with what it has");
    line.flag("--published-program", published,
              "Strategies and transfers as the authors' program has them, instead of as the paper says");
    add_strict(line, strict);
    line.may_be_quiet();
    line.text("--output", output, "File to write: id, device, start and end of each vertex (CSV)")
        .type_name("FILE.csv");
  }
};

bool ends_in(const std::string& word, const char* suffix) {
  return word.size() > std::string_view(suffix).size() && word.ends_with(suffix);
}

/// What is assigned, and how its times are written.
struct Problem {
  OperatorGraph graph;
  GraphDevices devices;
  std::optional<LayerOperators> of_profile;  ///< whose times are nanoseconds

  std::string text(Ticks t) const {
    return of_profile ? fmt::format("{:>10}", format_time(of_profile->nanoseconds(t)))
                      : fmt::format("{:10.1f}", to_units(t));
  }
  Json number(Ticks t) const { return of_profile ? Json(of_profile->nanoseconds(t)) : Json(to_units(t)); }
  /// "12.345678901": exact; of a profile whole nanoseconds.
  std::string exact(Ticks t) const {
    return of_profile ? std::to_string(of_profile->nanoseconds(t))
                      : fmt::format("{}.{:09}", t / kTicksPerUnit, t % kTicksPerUnit);
  }
};

Problem read_problem(const Arguments& a, Io& io) {
  if (!ends_in(a.graph, ".json")) return {read_graph_csv(a.graph), read_devices_csv(a.devices), std::nullopt};
  PartitionOptions options = partition_devices(a.devices, a.memory, io);
  options.allow_incomplete = a.incomplete;
  options.inference = a.inference;
  const Profile profile = read_times(a.graph, io);
  check_partition(profile, options);
  Problem problem;
  problem.of_profile.emplace(chain::Model(profile, options));
  problem.graph = problem.of_profile->graph();
  problem.devices = problem.of_profile->devices();
  return problem;
}

/// The memory of a profile's operators is an estimate: what does not fit them is not proved to be impossible.
GraphCosts costs_of(const Problem& problem, const Arguments& a) {
  try {
    return GraphCosts(problem.graph, problem.devices);
  } catch (const InfeasibleError& error) {
    if (problem.of_profile) throw InputError(a.graph, 0, error.what());
    throw;
  }
}

struct Outcome {
  Assignment assignment;
  std::vector<Ticks> start;
  std::vector<Ticks> makespans;  ///< of all runs; the shortest is the one above
  Ticks lower_bound = 0;
  std::string method;
  std::vector<GraphCandidate> candidates;  ///< of best
  bool cut = false, interrupted = false;
};

[[noreturn]] void refuse(const Arguments& a, const std::string& reason) {
  throw InputError(a.graph, 0,
                   fmt::format("no assignment was found: {}. More memory on the devices would help", reason));
}

/// `of_profile`: memory is an estimate, so nothing is proved infeasible.
Outcome run_best(const GraphCosts& costs, const Arguments& a, bool of_profile) {
  if (a.published)
    throw UsageError("--published-program does not go with best: the authors' program has no such strategy");
  const InterruptGuard guard;
  GraphBestOptions options;
  options.seed = a.seed;
  options.time_limit = a.time_limit;
  options.interrupted = [&] { return guard.caught(); };
  if (a.runs > 0) options.runs = a.runs;
  GraphBest best = best_partition(costs, options);
  if (best.infeasible && !of_profile)
    throw InfeasibleError(
        fmt::format("{}: no assignment fits the memory of the devices: every one was tried", a.graph));
  if (!best.reason.empty()) refuse(a, best.reason);
  return {std::move(best.solution.assignment),
          std::move(best.solution.start),
          {best.solution.makespan},
          best.lower_bound,
          "best",
          std::move(best.candidates),
          best.cut_by_limit,
          guard.caught()};
}

Outcome run_strategy(const GraphCosts& costs, const Arguments& a) {
  const GraphStrategy strategy = parse_graph_strategy(a.strategy);
  const GraphSchedule schedule = parse_graph_schedule(a.schedule);
  const GraphSends sends = a.published ? GraphSends::operations : GraphSends::immediate;
  const bool own_order = strategy == GraphStrategy::heft;
  Outcome outcome;
  outcome.method = own_order ? "heft, its own order" : fmt::format("{} + {}", a.strategy, a.schedule);
  for (int run = 0; run < std::max(1, a.runs); ++run) {
    const std::uint64_t seed = a.seed + static_cast<std::uint64_t>(run);
    const GraphPartition p = partition(costs, strategy, {.seed = seed, .published_program = a.published});
    if (!p.reason.empty()) refuse(a, p.reason);
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
  outcome.lower_bound = graph_lower_bound(costs);
  return outcome;
}

void write_assignment(const Problem& problem, const GraphCosts& costs, const Outcome& o,
                      const std::string& path) {
  std::string text = "id,device,start,end\n";
  for (int v = 0; v < costs.graph().size(); ++v)
    text += fmt::format("{},{},{},{}\n", costs.graph().ids[v], costs.devices().devices[o.assignment[v]].id,
                        problem.exact(o.start[v]),
                        problem.exact(o.start[v] + costs.execution(v, o.assignment[v])));
  write_file(path, text);
}

Ticks mean(const std::vector<Ticks>& makespans) {
  __int128 sum = 0;
  for (const Ticks m : makespans) sum += m;
  return static_cast<Ticks>(sum / static_cast<std::int64_t>(makespans.size()));
}

int devices_used(const Outcome& o) {
  std::vector<int> devices = o.assignment;
  std::sort(devices.begin(), devices.end());
  return static_cast<int>(std::unique(devices.begin(), devices.end()) - devices.begin());
}

double gap_percent(const Outcome& o) {
  if (o.lower_bound == 0) return 0;
  return 100 * (to_units(o.makespans.front()) / to_units(o.lower_bound) - 1);
}

Json json_of(const Problem& problem, const Outcome& o, int status) {
  const auto [low, high] = std::minmax_element(o.makespans.begin(), o.makespans.end());
  Json json = {{"status", status},
               {"method", o.method},
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

std::string text_of(const Problem& problem, const GraphCosts& costs, const Outcome& o) {
  const auto [low, high] = std::minmax_element(o.makespans.begin(), o.makespans.end());
  std::string text =
      fmt::format("{}: {} vertices, {} edges on {} of {} devices\n", o.method, costs.graph().size(),
                  costs.graph().successors.values.size(), devices_used(o), costs.device_count());
  text += fmt::format("  makespan     {}\n", problem.text(*low));
  if (o.makespans.size() > 1)
    text += fmt::format("  {} runs       mean{}, longest{}\n", o.makespans.size(),
                        problem.text(mean(o.makespans)), problem.text(*high));
  text += fmt::format(
      "  proven bound {}   gap {:.1f} %{}\n", problem.text(o.lower_bound), gap_percent(o),
      problem.of_profile ? "   of these operators, whose transfers and speeds are estimates" : "");
  for (std::size_t i = 0; i < std::min<std::size_t>(o.candidates.size(), 5); ++i)
    text += fmt::format("  {} {}   {}\n", i == 0 ? "starts from " : "            ",
                        problem.text(o.candidates[i].makespan), o.candidates[i].name);
  if (o.cut) text += "  stopped early: this is the best so far\n";
  return text;
}

}  // namespace

bool asks_for_graph(const std::vector<std::string>& args) {
  for (const std::string& arg : args)
    if (arg == "--strategy" || arg.starts_with("--strategy=")) return true;
  const auto file =
      std::find_if(args.begin(), args.end(), [](const std::string& a) { return !a.starts_with("-"); });
  return file != args.end() && ends_in(*file, ".csv");
}

int partition_graph_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line(
      "partition",
      "Assigns the vertices of an operator graph to devices of different kind, speed and memory, and\n"
      "simulates one iteration. Times are in the unit of the file (operations / speed). Of a profile, the\n"
      "forward and the backward of each layer are the vertices, and an iteration is one micro-batch.",
      "partition graph.csv --devices devices.csv --strategy critical-path --schedule pct");
  const Arguments a(line);
  if (!line.parse(args, io)) return 0;
  const bool best = a.strategy == "best";
  if (!best) parse_graph_strategy(a.strategy);
  parse_graph_schedule(a.schedule);
  const Problem problem = read_problem(a, io);
  const GraphCosts costs = costs_of(problem, a);
  const Outcome outcome = best ? run_best(costs, a, problem.of_profile.has_value()) : run_strategy(costs, a);
  if (!a.output.empty()) write_assignment(problem, costs, outcome, a.output);
  const int status = to_int(outcome.interrupted       ? ExitStatus::interrupted
                            : outcome.cut && a.strict ? ExitStatus::stopped_at_limit
                                                      : ExitStatus::done);
  if (line.json) {
    Json json = json_of(problem, outcome, status);
    if (!a.output.empty()) json["output"] = a.output;
    print_json(json, io);
  } else {
    io.say(text_of(problem, costs, outcome));
    if (!a.output.empty()) io.say("  written to " + a.output + "\n");
  }
  return status;
}

}  // namespace ostinato::cli
