// SPDX-License-Identifier: Apache-2.0
#pragma once
// One search for the shortest plan, whatever memory it takes of what there is.
//
//   SearchOptions options{.micro_batches = 32, .time_limit_seconds = 10};
//   Plan plan = shortest_plan(placement, options);       // throws InfeasibleError with the proof
//
// Source: Tessel (arXiv 2311.15269), sections 4 and 5. docs/search.md says how it works and what is proved.

#include "search/placement/placement.h"
#include "search/plan/plan.h"
#include "search/portfolio/search_options.h"

namespace ostinato {

/// The best plan found. Never worse than any named schedule that the placement admits under its memory.
/// Throws InfeasibleError (with the proof) where no order fits, UndecidedError where neither an order nor a
/// proof was found, InputError where the options contradict the placement. `placement_sha256` of the result
/// is left empty: the caller knows the file.
Plan shortest_plan(const Placement& placement, const SearchOptions& options);

/// Of the search after one of this effort (taken as the usual, 100, where less) that left a gap: four times
/// as much, up to what SearchOptions may ask for.
int greater_effort(int effort);

}  // namespace ostinato
