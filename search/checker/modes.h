// SPDX-License-Identifier: Apache-2.0
#pragma once
// The checker's own proof of what a plan claims beyond its placement with its modes: the bound over all modes
// and the bound within less memory (docs/bounds.md, C). It shares nothing with search/bounds/mode_bounds.h.

#include "search/checker/bounds.h"
#include "search/checker/timetable.h"
#include "search/plan/plan.h"

namespace ostinato::checker {

/// C2: a bound of the objective of n micro-batches that holds whichever modes are taken. Stops at the first
/// device that reaches `enough`. O(devices * sets of modes on a device) times the cost of Bounds.
Bound bound_of_any_modes(const Placement& placement, Objective objective, int n, Wide enough);

/// Checks `modes.lower_bound` and `capacity` of the plan, where it has them. `placement` is as written.
/// Spends at most `most_work` (checker/exhaust.h) on a bound that no statement gives.
void check_choice_claims(const Plan& plan, const Placement& placement, std::int64_t most_work,
                         Report& report);

}  // namespace ostinato::checker
