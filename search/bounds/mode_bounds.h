// SPDX-License-Identifier: Apache-2.0
#pragma once
// What holds whichever modes a plan takes: bounds and proofs of infeasibility (docs/bounds.md, C).
//
//   const ModesBound all = bound_over_modes(placement, Objective::makespan, 32);
//   all.value        // no schedule with any modes ends before
//   all.guided       // the modes with which each device's own bound is least: a good place to begin

#include "search/plan/modes.h"
#include "search/plan/plan.h"

namespace ostinato {

struct ModesBound {
  Nanoseconds value = 0;
  Assignment guided;
};

/// Throws InfeasibleError where some device's blocks fit in no mode. O(devices * sets of modes on a device)
/// times the cost of Bounds; a device with more than 64 sets of modes proves nothing.
ModesBound bound_over_modes(const Placement& placement, Objective objective, int micro_batches);

}  // namespace ostinato
