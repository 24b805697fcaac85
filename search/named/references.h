// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the named schedules would take for a placement: what a plan is compared with, and an upper bound on it
// that costs next to nothing.

#include <functional>
#include <string>
#include <vector>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato {

struct Reference {
  std::string name;
  Nanoseconds value = 0;  ///< of the objective
  Nanoseconds makespan = 0;
  bool fits = false;  ///< under the placement's memory
  Nanoseconds shared =
      0;  ///< makespan where devices share processors, where a caller has replayed it; else 0
};

/// Every named schedule that the placement admits, and that is wanted. O(names * steps).
std::vector<Reference> references(const Placement& placement, int micro_batches, Objective objective,
                                  const std::function<bool(const std::string&)>& wanted = {});

/// The value of the plan's objective.
Nanoseconds objective_value(const Plan& plan, const Placement& placement);

}  // namespace ostinato
