// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <ranges>

#include "plugin/lowering/lengthen.h"
#include "plugin/lowering/lower.h"
#include "search/checker/checker.h"
#include "search/files/error.h"
#include "search/files/file.h"
#include "search/files/sha256.h"
#include "search/named/named.h"
#include "search/placement/placement_toml.h"
#include "search/plan/one_batch.h"
#include "search/plan/orders.h"
#include "search/plan/plan_json.h"
#include "search/simulate/simulate.h"

namespace ostinato {
namespace {

/// Of these orders, with the plan's micro-batches and what sharing processors costs; none where they
/// contradict each other.
std::optional<Nanoseconds> predicted_in(Orders orders, const Plan& plan, const Placement& placement) {
  const OneBatch all = as_one_batch(plan, placement);
  if (!plan.sizes.empty()) {
    for (Step& step : orders | std::views::join)
      step = {step.micro_batch * static_cast<int>(placement.blocks.size()) + step.block, 0};
  }
  const auto schedule = earliest_starts(all.placement, all.plan.micro_batches, orders);
  if (!schedule) return std::nullopt;
  return replayed_makespan(all.placement, all.plan.micro_batches, *schedule);
}

std::vector<Baseline> baselines_of(const Plan& plan, const Placement& placement) {
  std::vector<Baseline> list = plan.baselines;
  if (!placement.hosts.empty()) {
    std::erase_if(list, [](const Baseline& baseline) { return baseline.shared == 0; });
    for (Baseline& baseline : list) baseline.makespan = baseline.shared;
  }
  if (!list.empty()) return list;
  for (const char* name : {"1f1b", "interleaved-1f1b"}) {
    const NamedSchedule named = named_schedule(name, placement, plan.micro_batches);
    if (named.orders)
      if (const auto makespan = predicted_in(*named.orders, plan, placement))
        return {{std::string(name) + "_same_stages", *makespan, *makespan, true}};
  }
  return {};
}

/// lower(), which knows no file.
Program lower_of(const std::string& name, const Plan& plan, const Placement& placement) {
  try {
    return lower(plan, placement);
  } catch (const InputError& error) {
    throw InputError(name, 0, error.what());
  }
}

/// `plan` may have more micro-batches than its file. `name`: of the placement's file.
Program lowered(const Plan& plan, const PlacementFile& file, const std::string& name,
                std::string plan_sha256) {
  Program program = lower_of(name, plan, file.placement);
  program.plan_sha256 = std::move(plan_sha256);
  program.placement_sha256 = file.sha256;
  program.model = file.model;
  program.predicted = predicted_makespan(plan, file.placement);
  if (const auto& times = file.model.step_time; !times.empty())
    program.whole_step = whole_step(plan, file.placement, times);
  return program;
}

}  // namespace

Program lower_files(const std::filesystem::path& plan_path, const std::filesystem::path& placement_path,
                    int micro_batches) {
  // First: it may be the only file that the user has named.
  const std::string text = read_file(plan_path, kMaxPlanBytes);
  const PlacementFile file = read_placement(placement_path);
  const Plan plan = parse_plan(text, plan_path.string(), file.placement, file.sha256);
  refuse_unless_it_runs(plan, file.placement, plan_path.string(), placement_path.string());
  const Plan longer = lengthened(plan, file.placement, micro_batches);
  Program program = lowered(longer, file, placement_path.string(), sha256(text));
  program.baselines = baselines_of(plan, file.placement);
  return program;
}

StepPlacement::StepPlacement(std::string_view text, const std::string& name)
    : file_(parse_placement(text, name)), name_(name) {}

Program StepPlacement::lower(const std::string& plan_json) const {
  const Plan plan = parse_plan(plan_json, "the plan of a step", file_.placement, file_.sha256);
  refuse_unless_it_runs(plan, file_.placement, "the plan of a step", name_);
  Program program = lowered(plan, file_, name_, sha256(plan_json));
  program.baselines = baselines_of(plan, file_.placement);
  return program;
}

}  // namespace ostinato
