// SPDX-License-Identifier: Apache-2.0
#pragma once
// Searching the modes of a placement's choices together with the schedule (`ostinato search --choose`).
//
//   Plan plan = search_modes(placement, {.micro_batches = 16});
//   const Placement q = with_modes(placement, plan.modes->taken);   // plan.schedule indexes its blocks
//
// Sets of modes are tried one after another, each by the ordinary search with a share of its work, unless its
// bound says that it cannot be better: first whole families (all as written, each mode wherever there is one
// of that name, the modes with the least bound of each device, the first choices one way and the others the
// other way), then one choice changed at a time until nothing gets better. The best set is searched again
// with all the work, then for less memory. docs/search.md, "Options".

#include "search/placement/placement.h"
#include "search/plan/modes.h"
#include "search/plan/plan.h"
#include "search/portfolio/search_options.h"

namespace ostinato {

/// The best plan found, with Plan::modes. Never worse than search() with a share of the work and the modes as
/// written. Throws InfeasibleError with a proof that holds for all modes, and what search() throws.
Plan search_modes(const Placement& placement, const SearchOptions& options);

}  // namespace ostinato
