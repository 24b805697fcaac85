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

}  // namespace ostinato
