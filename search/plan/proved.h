// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is proved of the plan's own objective, whichever that is.

#include "search/plan/plan.h"

namespace ostinato {

inline Nanoseconds bound_of(const Plan& plan) {
  return plan.objective == Objective::makespan ? plan.lower_bound.makespan : plan.lower_bound.objective;
}

/// It meets that bound.
inline bool is_optimal(const Plan& plan) {
  return plan.objective == Objective::makespan ? plan.optimal.makespan : plan.optimal.objective;
}

}  // namespace ostinato
