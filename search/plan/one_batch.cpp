// SPDX-License-Identifier: Apache-2.0
#include "search/plan/one_batch.h"

namespace ostinato {

OneBatch as_one_batch(const Plan& plan, const Placement& placement) {
  if (plan.sizes.empty()) return {placement, plan};
  OneBatch all = {unrolled(placement, plan.sizes), plan};
  all.plan.sizes.clear();
  all.plan.micro_batches = 1;
  for (ScheduledBlock& step : all.plan.schedule) {
    step.block += step.micro_batch * static_cast<int>(placement.blocks.size());
    step.micro_batch = 0;
  }
  return all;
}

OneBatch as_drawn(const Plan& plan, const Placement& placement) {
  OneBatch all = as_one_batch(plan, placement);
  if (plan.sizes.empty()) return all;
  const std::size_t blocks = placement.blocks.size();
  for (std::size_t k = 0; k < all.placement.blocks.size(); ++k)
    all.placement.blocks[k].name = placement.blocks[k % blocks].name;
  for (std::size_t k = 0; k < plan.schedule.size(); ++k)
    all.plan.schedule[k].micro_batch = plan.schedule[k].micro_batch;
  all.plan.micro_batches = plan.micro_batches;
  return all;
}

}  // namespace ostinato
