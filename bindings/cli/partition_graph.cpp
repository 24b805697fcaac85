// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/partition_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "bindings/cli/command_line.h"
#include "bindings/cli/interrupt.h"
#include "bindings/cli/plan_files.h"
#include "bindings/cli/profile_arguments.h"
#include "bindings/cli/run_search.h"
#include "bindings/core/graph_partition.h"
#include "bindings/core/numbers.h"
#include "search/files/file.h"

namespace ostinato::cli {
namespace {

struct Arguments {
  std::string graph, devices, output, memory = "unlimited";
  core::GraphRequest request;
  bool incomplete = false, inference = false, strict = false;

  explicit Arguments(CommandLine& line) {
    line.text("graph", graph, "Operator graph (CSV), or a profile (JSON) whose layers are the operators")
        .required()
        .type_name("GRAPH");
    line.text("--devices", devices,
              "Devices and the rates between them (CSV); for a profile: their number or a device file (TOML)")
        .required()
        .type_name("DEVICES");
    line.text("--device-memory", memory,
              "For a profile: memory per device, with a unit: 40GiB (default: unlimited)")
        .type_name("AMOUNT");
    line.flag("--allow-incomplete", incomplete, "Accept a profile that lost events");
    line.flag("--inference", inference, "For a profile: forwards only");
    line.text("--strategy", request.strategy,
              "hash, batch-split, critical-path, mite, dfs, heft or best (default: best)")
        .type_name("NAME");
    line.text("--schedule", request.schedule,
              "fifo, pct or msr (default: pct); heft and best use their own order")
        .type_name("NAME");
    line.whole_number("--seed", request.seed, {0, std::numeric_limits<std::int64_t>::max()},
                      "Seed of the search, and of a strategy's random choices (default: 0)");
    line.whole_number("--runs", request.runs, {1, 10'000},
                      "With best: local searches to run side by side (default: 2); else: seeds to run, for "
                      "mean and spread (default: 1)");
    line.decimal("--time-limit", request.time_limit_seconds, {0, 100'000'000},
                 "Stop best, and the proof of a bound, after this many seconds with the result so far; above "
                 "10, best searches longer; 0: no limit (default: 0)");
    line.flag("--published-program", request.published,
              "Follow the authors' program, not the paper, where their strategies and transfers differ");
    add_strict(line, strict);
    line.may_be_quiet();
    line.text("--output", output, "File to write: id, device, start and end of each vertex (CSV)")
        .type_name("FILE.csv");
  }
};

bool ends_in(const std::string& word, const char* suffix) {
  return word.size() > std::string_view(suffix).size() && word.ends_with(suffix);
}

void refuse_what_needs_a_profile(const CommandLine& line, const Arguments& a) {
  if (ends_in(a.graph, ".json")) return;
  if (line.given("--device-memory"))
    throw UsageError("--device-memory is for a profile (.json): a graph's --devices file has their memory");
  for (const char* option : {"--allow-incomplete", "--inference"})
    if (line.given(option)) throw UsageError(fmt::format("{} is for a profile (.json)", option));
}

core::GraphProblem read_problem(const Arguments& a, Io& io) {
  if (!ends_in(a.graph, ".json")) {
    if (core::is_whole_number(a.devices, 0, std::numeric_limits<std::int64_t>::max()))
      throw UsageError(fmt::format(
          "--devices {}: a graph needs a file (CSV) with the devices' speeds and the rates between "
          "them; only a profile (.json) takes a number",
          a.devices));
    return core::read_graph_problem(a.graph, a.devices);
  }
  PartitionOptions options = partition_devices(a.devices, a.memory, io);
  options.allow_incomplete = a.incomplete;
  options.inference = a.inference;
  return core::graph_problem(read_times(a.graph, io), options, a.graph);
}

}  // namespace

bool asks_for_graph(const std::vector<std::string>& args) {
  for (const std::string& arg : args)
    if (arg == "--strategy" || arg.starts_with("--strategy=")) return true;
  const auto file =
      std::find_if(args.begin(), args.end(), [](const std::string& a) { return !a.starts_with('-'); });
  return file != args.end() && ends_in(*file, ".csv");
}

int partition_graph_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line(
      "partition",
      "Assigns the vertices of an operator graph to devices that may differ in kind, speed and memory, "
      "and simulates one iteration. Times are in the file's unit (operations / speed). With a profile, the "
      "vertices are the forward and backward of each layer, and one iteration is one micro-batch.",
      "partition graph.csv --devices devices.csv --strategy critical-path --schedule pct");
  Arguments a(line);
  if (!line.parse(args, io)) return 0;
  refuse_what_needs_a_profile(line, a);
  core::check(a.request);
  check_apart({{"--output", a.output}}, {a.graph, a.devices});
  if (!a.output.empty()) check_can_write(a.output);
  const core::GraphProblem problem = read_problem(a, io);
  const graph::GraphCosts costs = core::costs_of(problem);
  std::optional<InterruptGuard> guard;  // a strategy alone is not worth a part of it
  if (a.request.best()) guard.emplace();
  a.request.interrupted = [&] { return guard && guard->caught(); };
  const core::GraphOutcome outcome = core::assign(problem, costs, a.request);
  if (!a.output.empty()) write_file(a.output, core::assignment_csv(problem, costs, outcome));
  const int status = to_int(a.request.interrupted()   ? ExitStatus::interrupted
                            : outcome.cut && a.strict ? ExitStatus::stopped_at_limit
                                                      : ExitStatus::done);
  if (line.json) {
    Json json = {{"status", status}};
    json.update(core::graph_json(problem, outcome));
    if (!a.output.empty()) json["output"] = a.output;
    print_json(json, io);
  } else {
    io.say(core::graph_text(problem, costs, outcome));
    if (!a.output.empty()) io.say("  written to " + a.output + "\n");
  }
  return status;
}

}  // namespace ostinato::cli
