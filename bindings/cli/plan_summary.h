#pragma once
// A plan in a few lines, beside the schedules that have names.

#include <string>
#include <vector>

#include "bindings/cli/command.h"
#include "search/placement.h"
#include "search/plan.h"

namespace ostinato::cli {

/// What a named schedule would take for the same placement.
struct Reference {
  std::string name;
  Nanoseconds value = 0;  ///< of the plan's objective
  Nanoseconds makespan = 0;
  bool fits = false;  ///< under the placement's memory
};

/// Every named schedule that the placement admits. O(names * steps).
std::vector<Reference> references(const Placement& placement, int micro_batches, Objective objective);

/// The value of the plan's objective.
Nanoseconds objective_value(const Plan& plan, const Placement& placement);

/// Lines for people: objective, bound, 1F1B, period, memory. `seconds` < 0: nothing was searched.
std::string summary(const Plan& plan, const Placement& placement, double seconds);

/// The same for programs: no line of it depends on how it is printed.
Json summary_json(const Plan& plan, const Placement& placement, double seconds);

}  // namespace ostinato::cli
