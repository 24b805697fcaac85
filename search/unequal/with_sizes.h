// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan that was made for other micro-batches: the same orders, other times.
//
//   const Plan other = with_sizes(plan, placement, {scaled(placement, 1, 2), scaled(placement, 3, 2)});

#include <vector>

#include "search/plan/plan.h"
#include "search/plan/sizes.h"

namespace ostinato {

/// The plan's order on each device with these micro-batches, every block as early as it can; nothing is
/// claimed of it. Throws InputError where they are not as many as the plan's, and where a device lacks memory
/// in this order.
Plan with_sizes(const Plan& plan, const Placement& placement, const std::vector<MicroBatch>& sizes);

/// Of any schedule of the placement, as with_sizes() and whatever its memory: the new starts.
std::vector<ScheduledBlock> with_sizes(const std::vector<ScheduledBlock>& schedule,
                                       const Placement& placement, const std::vector<MicroBatch>& sizes);

}  // namespace ostinato
