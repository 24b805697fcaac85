// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/show_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "bindings/cli/named_plan.h"
#include "bindings/cli/plan_files.h"
#include "bindings/core/usage_error.h"
#include "search/checker/checker.h"
#include "search/files/counted.h"
#include "search/files/file.h"
#include "search/files/printable.h"
#include "search/files/sha256.h"
#include "search/files/value.h"
#include "search/named/named.h"
#include "search/placement/lanes.h"
#include "search/placement/quantity.h"
#include "search/plan/one_batch.h"
#include "search/plan/plan_json.h"
#include "search/show/show.h"

namespace ostinato::cli {
namespace {

/// A plan for the page, with what its ShownPlan refers to.
struct Beside {
  std::string title;
  Plan plan;
  Placement placement;
};

Beside beside(const std::string& what, const PageRequest& asked, const Plan& plan,
              const Placement& placement) {
  if (is_schedule(what)) {
    NamedPlan known = named_plan(what, plan, placement);
    return {known.name, std::move(known.plan), placement};
  }
  if (std::error_code error; !std::filesystem::exists(what, error))
    throw UsageError(fmt::format("--against {}: neither a plan's file nor a known schedule ({}){}",
                                 printable(what), schedule_names(), did_you_mean(what, named_schedules())));
  const std::string file = placement_of(what, asked.placements).string();
  auto [written, other] = read_plan_and_placement(what, file);
  refuse_unless_it_runs(other, written.placement, what, file);
  check_same_model(asked.model, written.model, file);
  OneBatch drawn = as_drawn(other, written.placement);
  return {what, std::move(drawn.plan), std::move(drawn.placement)};
}

/// What ran on a lane is in its row. What only waited for a copy is in none.
void sort_by_lanes(MeasuredStep& step, const Placement& placement, const std::string& folder) {
  const int ranks = static_cast<int>(step.devices.size());
  step.devices.resize(std::max(step.devices.size(), placement.devices.size()));
  for (int d = 0; d < ranks; ++d) {
    for (const MeasuredInstruction& i : std::exchange(step.devices[d], {})) {
      const int row = i.lane.empty() ? d : find_lane(placement, d, i.lane);
      if (row < 0)
        throw InputError(
            folder, 0,
            fmt::format("the trace has lane {} on device {}, the placement has none of that name",
                        in_quotes(i.lane), d));
      if (i.action != "R") step.devices[row].push_back(i);
    }
  }
}

MeasuredStep measured_step(const std::string& folder, const std::string& plan_path, const Plan& plan,
                           const Placement& placement) {
  MeasuredStep step = read_trace(folder);
  const std::string digest = sha256(read_file(plan_path, kMaxPlanBytes));
  if (!step.plan_sha256.empty() && step.plan_sha256 != digest)
    throw InputError(
        folder, 0,
        fmt::format("the trace is of another plan: its sha256 begins with {}, that of {} with {}",
                    printable(step.plan_sha256.substr(0, 12)), printable(plan_path), digest.substr(0, 12)));
  if (step.makespan != plan.makespan)
    throw InputError(
        folder, 0,
        fmt::format("the trace's plan takes {}, this one {}: their numbers of micro-batches differ",
                    format_time(step.makespan), format_time(plan.makespan)));
  if (step.devices.size() > placement.devices.size())
    throw InputError(folder, 0,
                     fmt::format("the trace has {}, the placement {}", counted(step.devices.size(), "device"),
                                 placement.devices.size()));
  sort_by_lanes(step, placement, folder);
  return step;
}

}  // namespace

std::vector<std::string> files_of(const PageRequest& asked) {
  std::vector<std::string> files = asked.placements;
  for (const std::string& what : asked.against) {
    if (std::error_code error; is_schedule(what) || !std::filesystem::exists(what, error)) continue;
    files.push_back(what);
    files.push_back(placement_of(what, asked.placements).string());
  }
  if (asked.trace.empty()) return files;
  for (const std::filesystem::path& file : trace_files(asked.trace)) files.push_back(file.string());
  return files;
}

std::vector<std::string> write_page(const PageRequest& asked, const std::string& path, const Plan& plan,
                                    const Placement& placement) {
  std::vector<Beside> others;
  std::vector<std::string> not_drawn;
  for (const std::string& what : asked.against) {
    try {
      others.push_back(beside(what, asked, plan, placement));
    } catch (const UsageError& error) {
      if (!is_schedule(what)) throw;
      not_drawn.emplace_back(error.what());
    }
  }
  std::optional<MeasuredStep> step;
  if (!asked.trace.empty()) step = measured_step(asked.trace, path, plan, placement);
  std::vector<ShownPlan> shown = {{path, plan, placement}};
  for (const Beside& other : others) shown.push_back({other.title, other.plan, other.placement});
  write_file(asked.file, show_html(shown, step));
  return not_drawn;
}

}  // namespace ostinato::cli
