// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>
#include <vector>

#include "bindings/cli/command.h"
#include "bindings/cli/command_line.h"
#include "bindings/cli/plan_files.h"
#include "bindings/cli/profile_arguments.h"
#include "search/checker/any_placement.h"
#include "search/files/wrapped.h"
#include "search/profile/profile_json.h"

namespace ostinato::cli {
namespace {

/// What is proved of other placements needs what the plan was made from.
CheckResult check_others(const PlanAndPlacement& files, const std::string& profile,
                         const std::string& devices, const Io& io) {
  const Cluster cluster = devices.empty() ? devices_of_claim(files.plan, files.file.placement)
                                          : cluster_of(partition_devices(devices, "unlimited", io));
  return check_any_placement(files.plan, files.file, read_profile(profile), cluster);
}

void append(CheckResult& result, const CheckResult& more) {
  result.passed.insert(result.passed.end(), more.passed.begin(), more.passed.end());
  result.failures.insert(result.failures.end(), more.failures.begin(), more.failures.end());
}

}  // namespace

int verify_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line("verify",
                   "Checks a plan with code that shares nothing with the search: every step, device, "
                   "dependency and byte, every figure but the baselines, the lower bounds and the claims of "
                   "optimality. Exits with status 6 if a check fails.",
                   "verify plan.json placement.toml --profile profile.json");
  const PlanArguments arguments(line);
  std::string profile, devices;
  line.text("--profile", profile, "From this profile, also check what is proved about all other placements")
      .type_name("PROFILE");
  line.text(
          "--devices", devices,
          "With --profile: the --devices that `plan` was given, if without --replicas and --slices (default: "
          "identical devices)")
      .type_name("D|FILE");
  line.may_be_quiet();
  if (!line.parse(args, io)) return 0;
  if (profile.empty() && !devices.empty()) throw UsageError("--devices needs --profile");
  const PlanAndPlacement files = arguments.read();
  CheckResult result = check_plan(files.plan, files.file.placement);
  std::vector<std::string> open;
  if (!profile.empty())
    append(result, check_others(files, profile, devices, io));
  else if (std::string why = refuted_by_plan(files.plan); !why.empty())
    result.failures.push_back(std::move(why));
  else if (files.plan.any_placement)
    open.emplace_back("any_placement: give --profile to check what is proved about other placements");
  const int status = to_int(result.ok() ? ExitStatus::done : ExitStatus::check_failed);
  if (line.json) {
    print_json({{"status", status},
                {"ok", result.ok()},
                {"passed", result.passed},
                {"failures", result.failures},
                {"not_checked", open}},
               io);
    return status;
  }
  for (const std::string& text : result.passed) io.say(wrapped("ok      " + text + "\n", 8));
  for (const std::string& text : result.failures) io.say(wrapped("FAILED  " + text + "\n", 8));
  for (const std::string& text : open) io.say(wrapped("not checked  " + text + "\n", 13));
  io.say(result.ok() ? "The plan is correct.\n" : "The plan is not correct.\n");
  return status;
}

}  // namespace ostinato::cli
