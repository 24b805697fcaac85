// SPDX-License-Identifier: Apache-2.0
#pragma once
// The schedule search: the repetend, its warm-up and its cool-down, together, with proven bounds; then as
// short a plan in less memory, or for times that vary.
//
//   SearchOptions options{.micro_batches = 32, .time_limit_seconds = 10};
//   Plan plan = search(placement, options);       // throws InfeasibleError with the proof

#include "search/placement/placement.h"
#include "search/plan/plan.h"
#include "search/portfolio/search_options.h"

namespace ostinato {

/// shortest_plan(), or one as short that in_less_memory() finds, or in_variation() where options.robust_ppm
/// is set. Throws as the first.
Plan search(const Placement& placement, const SearchOptions& options);

}  // namespace ostinato
