#include "bindings/cli/partition_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "bindings/cli/interrupt.h"
#include "search/files/file.h"
#include "search/partition/graph_best.h"
#include "search/partition/graph_bound.h"
#include "search/partition/graph_csv.h"
#include "search/partition/graph_simulate.h"
#include "search/partition/graph_strategies.h"

namespace ostinato::cli {
namespace {

struct Arguments {
  std::string graph, devices, output;
  std::string strategy = "best", schedule = "pct";
  std::uint64_t seed = 0;
  int runs = 0;
  double time_limit = 0;
  bool published = false;

  explicit Arguments(CLI::App& app) {
    app.add_option("graph", graph, "Operator graph (CSV)")->required()->type_name("GRAPH.csv");
    app.add_option("--devices", devices, "Devices and rates between them (CSV)")
        ->required()
        ->type_name("DEVICES.csv");
    app.add_option("--strategy", strategy,
                   "hash, batch-split, critical-path, mite, dfs, heft or best (the default)");
    app.add_option("--schedule", schedule,
                   "fifo, pct (the default) or msr; heft and best bring their own order");
    app.add_option("--seed", seed,
                   "Of the search, and of the orders that a strategy leaves open; 0 by default");
    app.add_option("--runs", runs,
                   "best: local searches side by side (2); else: seeds, for the mean and the spread (1)")
        ->check(CLI::Range(1, 10000));
    app.add_option("--time-limit", time_limit, "Seconds after which best stops with what it has")
        ->check(CLI::Range(0.0, 1e6));
    app.add_flag("--published-program", published,
                 "Strategies and transfers as the authors' program has them, instead of as the paper says");
    app.add_option("--output", output, "File to write: id, device, start and end of each vertex (CSV)")
        ->type_name("FILE.csv");
  }
};

struct Outcome {
  Assignment assignment;
  std::vector<Ticks> start;
  std::vector<Ticks> makespans;  ///< of all runs; the shortest is the one above
  Ticks lower_bound = 0;
  std::string method;
  std::vector<GraphCandidate> candidates;  ///< of best
  bool cut = false, interrupted = false;
};

/// "12.345678901": exact.
std::string decimal(Ticks ticks) {
  return fmt::format("{}.{:09}", ticks / kTicksPerUnit, ticks % kTicksPerUnit);
}

[[noreturn]] void refuse(const Arguments& a, const std::string& reason) {
  throw InputError(a.graph, 0,
                   fmt::format("no assignment was found: {}. More memory on the devices would help", reason));
}

Outcome run_best(const GraphCosts& costs, const Arguments& a) {
  if (a.published)
    throw UsageError("--published-program does not go with best: the authors' program has no such strategy");
  const InterruptGuard guard;
  GraphBestOptions options;
  options.seed = a.seed;
  options.time_limit = a.time_limit;
  options.interrupted = [&] { return guard.caught(); };
  if (a.runs > 0) options.runs = a.runs;
  GraphBest best = best_partition(costs, options);
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
    const GraphPartition p =
        partition(costs, strategy,
                  {.seed = a.seed + static_cast<std::uint64_t>(run), .published_program = a.published});
    if (!p.reason.empty()) refuse(a, p.reason);
    GraphTimeline t = own_order ? simulate_ranked(costs, p.assignment, p.planned, sends)
                                : simulate(costs, p.assignment, schedule, sends);
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

void write_assignment(const GraphCosts& costs, const Outcome& o, const std::string& path) {
  std::string text = "id,device,start,end\n";
  for (int v = 0; v < costs.graph().size(); ++v)
    text += fmt::format("{},{},{},{}\n", costs.graph().ids[v], costs.devices().devices[o.assignment[v]].id,
                        decimal(o.start[v]), decimal(o.start[v] + costs.execution(v, o.assignment[v])));
  write_file(path, text);
}

double mean(const std::vector<Ticks>& makespans) {
  double sum = 0;
  for (const Ticks m : makespans) sum += to_units(m);
  return sum / static_cast<double>(makespans.size());
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

Json json_of(const Outcome& o, int status) {
  const auto [low, high] = std::minmax_element(o.makespans.begin(), o.makespans.end());
  Json json = {{"status", status},
               {"method", o.method},
               {"makespan", to_units(*low)},
               {"lower_bound", to_units(o.lower_bound)},
               {"gap_percent", gap_percent(o)},
               {"devices_used", devices_used(o)},
               {"cut_by_limit", o.cut}};
  if (o.makespans.size() > 1)
    json["runs"] = {{"count", o.makespans.size()}, {"mean", mean(o.makespans)}, {"highest", to_units(*high)}};
  for (const GraphCandidate& c : o.candidates)
    json["starts"].push_back({{"name", c.name}, {"makespan", to_units(c.makespan)}});
  return json;
}

std::string text_of(const GraphCosts& costs, const Outcome& o) {
  const auto [low, high] = std::minmax_element(o.makespans.begin(), o.makespans.end());
  std::string text =
      fmt::format("{}: {} vertices, {} edges on {} of {} devices\n", o.method, costs.graph().size(),
                  costs.graph().successors.values.size(), devices_used(o), costs.device_count());
  text += fmt::format("  makespan     {:10.1f}\n", to_units(*low));
  if (o.makespans.size() > 1)
    text += fmt::format("  {} runs       mean {:.1f}, longest {:.1f}\n", o.makespans.size(),
                        mean(o.makespans), to_units(*high));
  text += fmt::format("  proven bound {:10.1f}   gap {:.1f} %\n", to_units(o.lower_bound), gap_percent(o));
  for (std::size_t i = 0; i < std::min<std::size_t>(o.candidates.size(), 5); ++i)
    text += fmt::format("  {} {:10.1f}   {}\n", i == 0 ? "starts from " : "            ",
                        to_units(o.candidates[i].makespan), o.candidates[i].name);
  if (o.cut) text += "  stopped early: this is the best so far\n";
  return text;
}

bool ends_in_csv(const std::string& word) { return word.size() > 4 && word.ends_with(".csv"); }

}  // namespace

bool asks_for_graph(const std::vector<std::string>& args) {
  for (const std::string& arg : args)
    if (arg == "--strategy" || arg.starts_with("--strategy=")) return true;
  const auto file =
      std::find_if(args.begin(), args.end(), [](const std::string& a) { return !a.starts_with("-"); });
  return file != args.end() && ends_in_csv(*file);
}

int partition_graph_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line(
      "partition",
      "Assigns the vertices of an operator graph to devices of different kind, speed and memory, and\n"
      "simulates one iteration. Times are in the unit of the file (operations / speed).",
      "partition graph.csv --devices devices.csv --strategy critical-path --schedule pct");
  const Arguments a(line.app);
  if (!line.parse(args, io)) return 0;
  const bool best = a.strategy == "best";
  if (!best) parse_graph_strategy(a.strategy);
  parse_graph_schedule(a.schedule);
  const OperatorGraph graph = read_graph_csv(a.graph);
  const GraphDevices devices = read_devices_csv(a.devices);
  const GraphCosts costs(graph, devices);
  const Outcome outcome = best ? run_best(costs, a) : run_strategy(costs, a);
  if (!a.output.empty()) write_assignment(costs, outcome, a.output);
  const int status = to_int(outcome.interrupted ? ExitStatus::interrupted
                            : outcome.cut       ? ExitStatus::stopped_at_limit
                                                : ExitStatus::done);
  if (line.json) {
    Json json = json_of(outcome, status);
    if (!a.output.empty()) json["output"] = a.output;
    print_json(json, io);
  } else {
    io.out << text_of(costs, outcome);
    if (!a.output.empty()) io.out << "  written to " << a.output << '\n';
  }
  return status;
}

}  // namespace ostinato::cli
