#include "search/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "bindings/cli/command.h"
#include "bindings/cli/options.h"
#include "bindings/cli/plan_files.h"
#include "bindings/cli/plan_summary.h"
#include "bindings/cli/plan_table.h"
#include "bindings/cli/profile_arguments.h"
#include "bindings/cli/run_search.h"
#include "search/files/file.h"
#include "search/partition/joint.h"
#include "search/partition/stages.h"
#include "search/placement/placement_toml.h"
#include "search/profile/profile_json.h"
#include "search/profile/profile_noise.h"

namespace ostinato::cli {
namespace {

struct Outputs {
  std::string plan, placement;
};

/// Writes both files: the plan first, which alone took long to compute.
void save(const Profile& profile, const Candidate& winner, const Outputs& outputs, Io& io) {
  const std::string text = format_placement(*winner.placement) +
                           format_model(facts_of(profile, winner.options, winner.cuts->stages));
  Plan plan = *winner.plan;
  plan.placement_sha256 = sha256(text);
  save_plan(outputs.plan, plan, *winner.placement, io);
  write_file(outputs.placement, text);
}

/// For a latency a device more may well make it longer: whoever asks for them there wants their memory.
FewerDevices fewer_devices(const OptionSet& options, Objective objective) {
  if (options.flag("fewer_devices") && options.flag("all_devices"))
    throw UsageError("--fewer-devices and --all-devices exclude each other");
  if (options.flag("fewer_devices")) return FewerDevices::every;
  const bool none = options.flag("all_devices") || objective == Objective::latency;
  return none ? FewerDevices::none : FewerDevices::some;
}

JointOptions joint_options(const ProfileArguments& arguments, const OptionSet& options) {
  JointOptions wanted;
  wanted.search = search_options(options, arguments.micro_batches);
  wanted.partition = arguments.partition_options(options);
  wanted.fewer_devices = fewer_devices(options, wanted.search.objective);
  wanted.max_chunks = static_cast<int>(options.integer("max_chunks"));
  return wanted;
}

/// Those that the profile marks, and those that the user names.
std::vector<int> may_be_sharded(const Profile& profile, const std::string& named) {
  std::vector<int> all = find_layers(profile, named), marked = shardable_layers(profile), both;
  std::set_union(all.begin(), all.end(), marked.begin(), marked.end(), std::back_inserter(both));
  return both;
}

void print(const JointChoice& choice, const Baselines& base, const Outputs& outputs, double seconds,
           const Profile& profile, bool json, int status, Io& io) {
  const Candidate& best = choice.candidates[choice.winner];
  const std::string noise = noise_of(profile);
  const std::vector<Bytes> step = facts_of(profile, best.options, best.cuts->stages).step_memory;
  if (json) {
    Json object = {{"status", status},
                   {"output", outputs.plan},
                   {"placement_output", outputs.placement},
                   {"chosen", best.name}};
    object.update(summary_json(*best.plan, *best.placement, seconds, step));
    object.update(choice_json(choice, base));
    if (!noise.empty()) object["noise"] = noise;
    return print_json(object, io);
  }
  io.out << choice_text(choice, base, profile) << '\n'
         << summary(*best.plan, *best.placement, seconds, step)
         << fmt::format("  written to        {}, {}\n", outputs.plan, outputs.placement);
}

}  // namespace

int plan_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line(
      "plan",
      "From a profile to a plan: partitions the model in every way that may pay (several chunks per "
      "device,\nlooped and as a wave, sharded layers, stages over the graph, recomputation), "
      "searches what the bounds leave,\nand takes the shortest that fits the memory.",
      "plan profile.json --devices 4 --micro-batches 8 --device-memory 40GiB --placement-output "
      "placement.toml "
      "--output plan.json");
  Outputs outputs;
  ProfileArguments arguments(line, true);
  OptionSet options(line, {"plan", "partition", "search"},
                    {"chunks", "layout", "stages", "recompute", "choose", "points"});
  line.app.add_option("--output", outputs.plan, "Plan file to write (JSON)")->required()->type_name("PLAN");
  line.app.add_option("--placement-output", outputs.placement, "Placement file to write (TOML)")
      ->required()
      ->type_name("PLACEMENT");
  if (!line.parse(args, io)) return 0;
  options.resolve();
  JointOptions wanted = joint_options(arguments, options);
  const Profile profile = read_times(arguments.profile, io);
  wanted.shardable = may_be_sharded(profile, options.text("shard"));
  check_can_write(outputs.plan);
  check_can_write(outputs.placement);

  const InterruptGuard guard;
  wanted.search.stop = guard.flag();
  const JointChoice choice = choose_plan(
      profile, wanted, [&](const Placement& placement, const SearchOptions& search, const std::string& name) {
        return run_search(placement, search, guard, name, io).plan;
      });
  const Candidate& best = choice.candidates[choice.winner];
  save(profile, best, outputs, io);
  io.err << whole_backward_lines(profile, best.options, best.cuts->stages);
  const int status = to_int(choice.interrupted ? ExitStatus::interrupted : status_of(*best.plan, guard));
  double seconds = 0;
  for (const Candidate& candidate : choice.candidates) seconds += candidate.seconds;
  print(choice, baselines(profile, wanted.partition, wanted.search.objective), outputs, seconds, profile,
        line.json, status, io);
  return status;
}

}  // namespace ostinato::cli
