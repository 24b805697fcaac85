// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a plan's time goes on the device that works most: what is lost before, in and after the repeating
// part.
//
//   Waiting waits = waiting_of_busiest(placement, plan);
//   waits.work + waits.in_all() == plan.makespan;

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato {

/// Nanoseconds in which the device runs no block.
struct Waiting {
  int device = 0;
  Nanoseconds work = 0;          ///< in which it does
  Nanoseconds before_first = 0;  ///< of its blocks
  Nanoseconds warm_up = 0;       ///< between its blocks, until all of them repeat
  Nanoseconds repetends = 0;
  Nanoseconds cool_down = 0;   ///< from where one of them no longer repeats; all, if the plan has no repetend
  Nanoseconds after_last = 0;  ///< until the makespan

  Nanoseconds in_all() const { return before_first + warm_up + repetends + cool_down + after_last; }
};

/// The first of the devices that work most. `plan`: in whole, as search() returns it. O(steps log steps).
Waiting waiting_of_busiest(const Placement& placement, const Plan& plan);

}  // namespace ostinato
