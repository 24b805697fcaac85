// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plans one step of micro-batches of these sizes from a profile.
//
//   const Planned planned = plan_sizes({{&profile, joint}}, {{512, 2048}, 1024}, {}, searcher);

#include <vector>

#include "bindings/core/planned.h"
#include "search/plan/sizes_toml.h"
#include "search/unequal/unequal.h"

namespace ostinato::core {

/// What plan_profile() does, for one step of these sizes: of the placements that it tries for the profile's
/// size, takes the one with the shortest plan for these sizes. `sizes.of` 0: the profile's tokens. Throws
/// InputError where neither is known, UsageError where the options do not go with sizes, and what
/// plan_profile() and search_unequal() throw.
Planned plan_sizes(const std::vector<SlicedProfile>& profiles, const BareSizes& sizes,
                   const UnequalOptions& unequal, const Searcher& searcher);

}  // namespace ostinato::core
