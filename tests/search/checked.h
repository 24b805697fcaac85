// SPDX-License-Identifier: Apache-2.0
#pragma once
// search() whose plan the independent checker has judged.

#include <gtest/gtest.h>

#include "search/checker/checker.h"
#include "search/search.h"

namespace ostinato::test {

inline void expect_holds(const Plan& plan, const Placement& placement) {
  for (const std::string& failure : check_plan(plan, placement).failures)
    ADD_FAILURE() << placement.name << ": " << failure;
}

/// Searches to the end, whatever the time; the plan holds.
inline Plan searched(const Placement& placement, int micro_batches,
                     Objective objective = Objective::makespan) {
  Plan plan =
      search(placement, {.micro_batches = micro_batches, .objective = objective, .time_limit_seconds = 0});
  EXPECT_FALSE(plan.search.cut_by_limit);
  expect_holds(plan, placement);
  return plan;
}

}  // namespace ostinato::test
