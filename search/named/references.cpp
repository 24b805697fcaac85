// SPDX-License-Identifier: Apache-2.0
#include "search/named/references.h"

#include "search/named/named.h"
#include "search/plan/memory.h"
#include "search/plan/orders.h"

namespace ostinato {

std::vector<Reference> references(const Placement& placement, int micro_batches, Objective objective,
                                  const std::function<bool(const std::string&)>& wanted) {
  std::vector<Reference> list;
  const Chains chains(placement);
  for (const std::string& name : named_schedules()) {
    if (wanted && !wanted(name)) continue;
    const NamedSchedule named = named_schedule(name, placement, micro_batches, chains);
    if (!named.orders) continue;
    const auto schedule = earliest_starts(placement, micro_batches, *named.orders);
    if (!schedule) continue;
    list.push_back({name, objective_value(objective, placement, *schedule), makespan_of(placement, *schedule),
                    fits_memory(placement, peak_memory(placement, *schedule))});
  }
  return list;
}

Nanoseconds objective_value(const Plan& plan, const Placement& placement) {
  return objective_value(plan.objective, placement, plan.schedule);
}

}  // namespace ostinato
