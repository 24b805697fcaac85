// SPDX-License-Identifier: Apache-2.0
#pragma once
// The same objective in less memory: a search takes the first order that is short, and another one, as short,
// may hold half as many micro-batches in flight.
//
//   Plan plan = shortest_plan(placement, options);
//   plan = in_less_memory(placement, options, std::move(plan));      // never longer

#include "search/placement/placement.h"
#include "search/plan/plan.h"
#include "search/portfolio/search_options.h"

namespace ostinato {

/// `plan`, or one with no greater objective or makespan in which the devices together hold less memory and
/// none holds more than the fullest did. It claims what was proved of `plan`. Bisects the memory of a device
/// with short searches, within `options`' limits, until kLeanerInVain in a row find nothing. No search if a
/// limit cut `plan`, or if the caller asked for its method.
Plan in_less_memory(const Placement& placement, const SearchOptions& options, Plan plan);

inline constexpr int kLeanerInVain = 3;

/// `found`, of a search within less memory of `placement`, claims what was proved for all of it: the bounds
/// of `first`, and its own of the period.
void claim_as(const Placement& placement, const Plan& first, Plan& found);

}  // namespace ostinato
