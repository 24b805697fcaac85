// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/named_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/core/usage_error.h"
#include "search/named/named.h"
#include "search/plan/orders.h"

namespace ostinato::cli {
namespace {

/// Or why there is none.
std::pair<std::optional<std::vector<ScheduledBlock>>, std::string> scheduled(const std::string& name,
                                                                             const Plan& like,
                                                                             const Placement& placement) {
  const NamedSchedule found = named_schedule(name, placement, like.micro_batches);
  if (!found.orders) return {std::nullopt, found.why_not};
  auto schedule = earliest_starts(placement, like.micro_batches, *found.orders);
  if (!schedule) return {std::nullopt, "its order contradicts the placement"};
  return {std::move(schedule), ""};
}

NamedPlan as_plan(const std::string& name, std::vector<ScheduledBlock> schedule, const Plan& like,
                  const Placement& placement) {
  NamedPlan made{name, {}};
  made.plan.placement_name = like.placement_name;
  made.plan.micro_batches = like.micro_batches;
  made.plan.objective = like.objective;
  made.plan.schedule = std::move(schedule);
  made.plan.makespan = makespan_of(placement, made.plan.schedule);
  made.plan.peak_memory = peak_memory(placement, made.plan.schedule);
  made.plan.search.method = name;
  return made;
}

}  // namespace

bool is_schedule(const std::string& name) {
  const auto& names = named_schedules();
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string schedule_names() { return fmt::format("{}", fmt::join(named_schedules(), ", ")); }

NamedPlan named_plan(const std::string& name, const Plan& like, const Placement& placement) {
  auto [schedule, why] = scheduled(name, like, placement);
  if (schedule) return as_plan(name, std::move(*schedule), like, placement);
  if (name == "1f1b") {
    const std::string interleaved = "interleaved-1f1b";
    if (auto [other, _] = scheduled(interleaved, like, placement); other)
      return as_plan(interleaved, std::move(*other), like, placement);
  }
  throw core::UsageError(
      fmt::format("--against {0} is not possible on this placement: {1}; give a plan's file instead "
                  "(ostinato plan --method {0} makes one with suitable stages)",
                  name, why));
}

}  // namespace ostinato::cli
