// SPDX-License-Identifier: Apache-2.0
#pragma once
// Applies micro-batch sizes to a profile, and to a plan made for other sizes.
//
//   const std::vector<MicroBatch> step = sized(profile, placement, {512, 2048}, 1024);
//   const Planned planned = plan_sizes({{&profile, joint}}, {{512, 2048}, 1024}, {});
//   const Plan other = with_sizes(plan, placement, step);     // the same orders, other times

#include <cstdint>
#include <vector>

#include "bindings/core/planned.h"
#include "search/plan/sizes_toml.h"
#include "search/unequal/unequal.h"

namespace ostinato::core {

/// Micro-batches of a placement with stages that say their layers. Memory and messages grow in proportion to
/// `size` / `of`. So do times, but where the profile was measured at two sizes or more (Profile::sizes): then
/// they follow the straight lines between these, and beyond them the lines through the outermost two.
/// Fractional sizes count in 1024ths. Throws InputError where the placement has layers that the profile
/// lacks.
std::vector<MicroBatch> sized(const Profile& profile, const Placement& placement,
                              const std::vector<double>& sizes, double of);

/// What plan_profile() does, for one step of these sizes: of the placements that it tries for the profile's
/// size, takes the one with the shortest plan for these sizes. `sizes.of` 0: the profile's tokens. Throws
/// InputError where neither is known, UsageError where the options do not go with sizes, and what
/// plan_profile() and search_unequal() throw.
Planned plan_sizes(const std::vector<SlicedProfile>& profiles, const BareSizes& sizes,
                   const UnequalOptions& unequal, const Searcher& searcher);

/// The plan's order on each device with these micro-batches, every block as early as it can; nothing is
/// claimed of it. Throws InputError where they are not as many as the plan's, and where a device lacks memory
/// in this order.
Plan with_sizes(const Plan& plan, const Placement& placement, const std::vector<MicroBatch>& sizes);

/// Of any schedule of the placement, as with_sizes() and whatever its memory: the new starts.
std::vector<ScheduledBlock> with_sizes(const std::vector<ScheduledBlock>& schedule,
                                       const Placement& placement, const std::vector<MicroBatch>& sizes);

}  // namespace ostinato::core
