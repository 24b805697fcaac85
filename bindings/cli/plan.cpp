// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "bindings/cli/command.h"
#include "bindings/cli/command_line.h"
#include "bindings/cli/option_set.h"
#include "bindings/cli/plan_files.h"
#include "bindings/cli/profile_arguments.h"
#include "bindings/cli/run_search.h"
#include "bindings/cli/sizes_arguments.h"
#include "bindings/core/partitioned.h"
#include "bindings/core/planned.h"
#include "bindings/core/requests.h"
#include "bindings/core/step_sizes.h"
#include "search/files/error.h"
#include "search/files/file.h"
#include "search/profile/cluster_toml.h"

namespace ostinato::cli {
namespace {

struct Outputs {
  std::string plan, placement;
  bool all_candidates = false;
};

void print(const Planned& planned, const Outputs& outputs, int status, bool json, const Until& until,
           Io& io) {
  if (!json) {
    io.say(planned_text(planned, outputs.all_candidates, until) +
           fmt::format("  written to        {}, {}\n", outputs.plan, outputs.placement));
    return;
  }
  Json object = {{"status", status}, {"output", outputs.plan}, {"placement_output", outputs.placement}};
  object.update(planned_json(planned, until));
  print_json(object, io);
}

std::vector<Profile> read_profiles(const std::vector<std::string>& paths, Io& io) {
  std::vector<Profile> profiles;
  for (const std::string& path : paths) profiles.push_back(read_times(path, io));
  return profiles;
}

/// What does not fit, and beside it what a device file says in its own units.
template <class Error>
Error with_amounts(const Error& error, const std::string& devices) {
  std::string text = error.what();
  if (std::error_code none; std::filesystem::is_regular_file(devices, none))
    for (const std::string& line : memory_as_written(read_file(devices, kMaxClusterBytes), devices))
      text += "\n  " + line;
  return Error(text);
}

}  // namespace

int plan_command(const std::vector<std::string>& args, Io& io) {
  const CommandTime time;
  CommandLine line(
      "plan",
      "Makes a plan from a profile: tries every kind of partition that may pay off (several chunks per "
      "device, looped or wave, sharded layers, stages over the graph, recomputation), searches those that "
      "the bounds do not rule out, and takes the shortest plan that fits the memory.",
      "plan profile.json --devices 4 --micro-batches 8 --device-memory 40GiB --placement-output "
      "placement.toml "
      "--output plan.json");
  Outputs outputs;
  const bool has_sizes = typed(args, "--sizes");
  ProfileArguments arguments(line, has_sizes ? MicroBatches::as_the_sizes : MicroBatches::required);
  SizesArguments sizes;
  sizes.declare(line,
                "Sizes of the step's micro-batches, where they differ (TOML); takes the placement on which "
                "their best order is shortest");
  OptionSet options(line, {"plan", "partition", "search"},
                    {"chunks", "layout", "stages", "recompute", "points"});
  line.text("--output", outputs.plan, "Plan file to write (JSON)").required().type_name("PLAN");
  line.text("--placement-output", outputs.placement, "Placement file to write (TOML)")
      .required()
      .type_name("PLACEMENT");
  bool strict = false;
  add_strict(line, strict);
  line.may_be_quiet();
  line.flag("-v,--verbose", outputs.all_candidates, "List every candidate, and why it was dropped");
  if (!line.parse(args, io)) return 0;
  options.resolve();
  sizes.check();
  BareSizes step;
  if (sizes.given()) {
    step = read_bare_sizes(sizes.file);
    sizes.check_count(arguments.micro_batches, step.sizes.size());
    arguments.micro_batches = static_cast<int>(step.sizes.size());
  }
  const PartitionOptions on = arguments.on(options, io);
  const std::vector<Profile> profiles = read_profiles(arguments.profiles, io);
  std::vector<SlicedProfile> wanted = sliced_options(options, on, arguments.micro_batches, profiles);
  if (wanted.front().options.search.robust_ppm > 0 && sizes.given())
    throw UsageError("--robust cannot be combined with --sizes, which says how micro-batches differ");
  for (std::size_t i = 0; i < profiles.size(); ++i)
    check_times(profiles[i], wanted[i].options.partition, arguments.profiles[i], io);
  std::vector<std::string> inputs = arguments.profiles;
  inputs.insert(inputs.end(), {arguments.devices, sizes.file, options.file()});
  check_apart({{"--output", outputs.plan}, {"--placement-output", outputs.placement}}, inputs);
  check_can_write(outputs.plan);
  check_can_write(outputs.placement);

  const InterruptGuard guard;
  const auto steps = static_cast<std::int64_t>(profiles.front().layers.size()) * arguments.micro_batches;
  const SearchOptions asked = wanted.front().options.search;
  SearchOptions limited = time.to_search(asked, steps);
  limited.stop = guard.flag();
  for (SlicedProfile& one : wanted) one.options.search = limited;
  const Searcher searcher = [&](const Placement& placement, const SearchOptions& search,
                                const std::string& name) {
    return run_shortest(placement, search, guard, name, io);
  };
  UnequalOptions unequal = unequal_options(limited);
  unequal.keep_order = sizes.keep_order;
  const Planned planned = [&] {
    try {
      return sizes.given() ? plan_sizes(wanted, step, unequal, searcher) : plan_profile(wanted, searcher);
    } catch (const InfeasibleError& error) {
      throw with_amounts(error, arguments.devices);
    } catch (const UndecidedError& error) {
      throw with_amounts(error, arguments.devices);
    }
  }();
  const Candidate& best = planned.best();
  save({found_plan(outputs.plan, planned.plan, *best.placement),
        {"placement", outputs.placement, [&](const Sink& sink) { sink(planned.placement_text); }}},
       io);
  if (!io.quiet) io.err << whole_backward_lines(*planned.profile, best.options, best.cuts->stages);
  const int status = to_int(status_of_cut(planned.cut, strict, guard));
  print(planned, outputs, status, line.json, time.to_print(asked), io);
  return status;
}

}  // namespace ostinato::cli
