// SPDX-License-Identifier: Apache-2.0
#include "search/simulate/simulate.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "bindings/cli/command.h"
#include "bindings/cli/command_line.h"
#include "bindings/cli/option_set.h"
#include "bindings/cli/plan_files.h"
#include "bindings/core/plan_summary.h"
#include "bindings/core/requests.h"
#include "search/files/printable.h"
#include "search/files/wrapped.h"
#include "search/named/named.h"
#include "search/placement/quantity.h"
#include "search/plan/orders.h"
#include "search/plan/sizes_toml.h"
#include "search/simulate/shared_cores.h"
#include "search/unequal/with_sizes.h"

namespace ostinato::cli {
namespace {

std::string beside(Nanoseconds value, Nanoseconds planned) {
  if (planned <= 0) return "";
  return fmt::format("  ({:+.2f} %)",
                     100.0 * static_cast<double>(value - planned) / static_cast<double>(planned));
}

/// What is told of the distribution: name and share of the runs that do not exceed it.
constexpr std::pair<const char*, int> kShares[] = {{"best", 0}, {"p10", 10}, {"median", 50},
                                                   {"p90", 90}, {"p99", 99}, {"worst", 100}};

/// `cores`: the makespan on shared cores, and who shares them; "": nobody does.
std::string text_of(const Simulation& s, const std::string& cores) {
  std::string text = wrapped(fmt::format("planned  {}{}{}\n", format_time(s.planned),
                                         cores.empty() ? "" : ", on shared cores ", cores),
                             9);
  for (const auto& [name, share] : kShares)
    text += fmt::format("{:<8} {}{}\n", name, format_time(s.at(share)), beside(s.at(share), s.planned));
  return text + fmt::format("runs     {}\n", s.makespans.size());
}

/// 1F1B, plain or interleaved, under the same variation of every step: nullopt where there is none.
/// `sizes`: of the micro-batches, in the order given; empty: they are alike.
struct Usual {
  std::string name;
  Simulation simulation;
};
std::optional<Usual> simulate_usual(const Placement& placement, int micro_batches,
                                    const std::vector<MicroBatch>& sizes, const SimulateOptions& options) {
  for (const char* name : {"1f1b", "interleaved-1f1b"}) {
    const NamedSchedule named = named_schedule(name, placement, micro_batches);
    auto schedule = named.orders ? earliest_starts(placement, micro_batches, *named.orders) : std::nullopt;
    if (!schedule) continue;
    if (sizes.empty()) return Usual{name, simulate(placement, micro_batches, *schedule, options)};
    Plan plan;
    plan.micro_batches = micro_batches;
    plan.sizes = sizes;
    plan.schedule = with_sizes(*schedule, placement, sizes);
    return Usual{name, simulate(plan, placement, options)};
  }
  return std::nullopt;
}

/// With the file's place in what is refused.
Plan with_sizes_of(const std::string& file, const PlanAndPlacement& read) {
  const std::vector<MicroBatch> sizes = read_sizes(file, read.file.placement);
  try {
    return with_sizes(read.plan, read.file.placement, sizes);
  } catch (const InputError& error) {
    throw InputError(file, 0, error.what());
  }
}

}  // namespace

int simulate_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line("simulate",
                   "Replays a plan's order on each device with varying times, and prints quantiles of the "
                   "makespan. The same seed gives the same makespans. --explain says what determines the "
                   "makespan of the plan as it is.",
                   "simulate plan.json placement.toml --jitter 0.1 --transfer-factor 2 --explain");
  const PlanArguments files(line);
  bool wants_explanation = false;
  std::string sizes;
  OptionSet options(line, {"simulate"});
  line.text("--sizes", sizes, "Replay the plan's order with these sizes or times of its micro-batches (TOML)")
      .type_name("FILE");
  line.flag("--explain", wants_explanation, "Explain in words what determines the makespan");
  if (!line.parse(args, io)) return 0;
  options.resolve();
  const SimulateOptions wanted = simulate_options(options);
  const PlanAndPlacement read = files.read_checked();
  const Plan replayed = sizes.empty() ? read.plan : with_sizes_of(sizes, read);
  const Simulation result = simulate(replayed, read.file.placement, wanted);
  const std::optional<Usual> usual =
      simulate_usual(read.file.placement, replayed.micro_batches, replayed.sizes, wanted);
  const auto whole = step_with_optimizer(replayed, read.file.placement, read.file.model);
  const Nanoseconds predicted = predicted_makespan(replayed, read.file.placement);
  std::vector<std::string> reasons;
  if (wants_explanation) reasons = explained(replayed, read.file.placement);
  if (line.json) {
    Json json = {{"status", 0}, {"planned", result.planned}};
    for (const auto& [name, share] : kShares) json[name] = result.at(share);
    json["runs"] = result.makespans.size();
    if (!read.file.placement.hosts.empty()) json["shared_makespan"] = predicted;
    if (whole) json["whole_step"] = *whole;
    if (usual) {
      json["usual"] = {{"schedule", usual->name},
                       {"planned", usual->simulation.planned},
                       {"median", usual->simulation.median()},
                       {"worst", usual->simulation.worst()}};
    }
    if (wants_explanation) json["explanation"] = reasons;
    print_json(json, io);
    return 0;
  }
  io.out << text_of(result, shared_cores_text(predicted, read.file.placement));
  if (whole) io.out << fmt::format("step     {} planned, including the optimizer\n", format_time(*whole));
  if (usual) {
    io.out << wrapped(
        fmt::format("against  {} with the same times, ignoring memory: median {}, worst {}\n", usual->name,
                    format_time(usual->simulation.median()), format_time(usual->simulation.worst())),
        9);
  }
  for (const std::string& reason : reasons) io.out << wrapped(printable(reason), 2) << '\n';
  return 0;
}

}  // namespace ostinato::cli
