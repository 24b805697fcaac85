// SPDX-License-Identifier: Apache-2.0
#include "plugin/lowering/lengthen.h"
#include "plugin/lowering/lower.h"
#include "search/checker/checker.h"
#include "search/files/error.h"
#include "search/files/file.h"
#include "search/files/sha256.h"
#include "search/named/named.h"
#include "search/plan/orders.h"
#include "search/plan/plan_json.h"
#include "search/simulate/simulate.h"

namespace ostinato {
namespace {

/// Where devices share processors, with what that costs.
Nanoseconds predicted(const Plan& plan, const Placement& placement,
                      const std::vector<ScheduledBlock>& schedule) {
  return placement.hosts.empty() ? makespan_of(placement, schedule)
                                 : replayed_makespan(placement, plan.micro_batches, schedule);
}

/// That a DeepSpeed user would have is on the best stages, or on an even split of the layers.
Nanoseconds one_f_one_b(const Plan& plan, const Placement& placement) {
  for (const Baseline& baseline : plan.baselines) {
    if (!baseline.name.starts_with("1f1b")) continue;
    if (placement.hosts.empty()) return baseline.makespan;
    if (baseline.shared > 0) return baseline.shared;
  }
  for (const char* name : {"1f1b", "interleaved-1f1b"}) {
    const NamedSchedule named = named_schedule(name, placement, plan.micro_batches);
    if (!named.orders) continue;
    const auto schedule = earliest_starts(placement, plan.micro_batches, *named.orders);
    if (schedule) return predicted(plan, placement, *schedule);
  }
  return 0;
}

}  // namespace

Program lower_files(const std::filesystem::path& plan_path, const std::filesystem::path& placement_path,
                    int micro_batches) {
  const auto [file, plan, placement] = read_plan_and_placement(plan_path, placement_path);
  refuse_unless_it_runs(plan, file.placement, plan_path.string(), placement_path.string());
  const Plan longer = lengthened(plan, file.placement, micro_batches);
  Program program = lower(longer, file.placement);
  program.plan_sha256 = sha256(read_file(plan_path, kMaxPlanBytes));
  program.placement_sha256 = file.sha256;
  if (plan.sizes.empty()) program.predicted = predicted(longer, placement, longer.schedule);
  program.one_f_one_b = one_f_one_b(plan, placement);
  return program;
}

}  // namespace ostinato
