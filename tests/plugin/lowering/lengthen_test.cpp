// SPDX-License-Identifier: Apache-2.0
// Plans for more micro-batches than were searched for: valid, and at the rate of the repetend.

#include "plugin/lowering/lengthen.h"

#include <gtest/gtest.h>

#include "plugin/lowering/lower.h"
#include "search/bounds/bounds.h"
#include "search/checker/checker.h"
#include "search/files/error.h"
#include "search/placement/shapes.h"
#include "search/plan/orders.h"
#include "search/search.h"

namespace ostinato {
namespace {

Placement serving(const std::string& name) {
  const int devices = name == "k" ? 4 : 3;
  std::vector<Nanoseconds> times = {10, 30, 20, 15};
  times.resize(devices);
  return shape(name, {.devices = devices, .forward = times, .shard_forward = 5, .training = false});
}

Plan searched(const Placement& placement, int micro_batches) {
  return search(placement, {.micro_batches = micro_batches, .time_limit_seconds = 0});
}

/// Every figure that follows from the schedule, as it is of this one.
Plan with_own_figures(Plan plan, const Placement& placement) {
  plan.span = span_of(placement, plan.schedule);
  plan.peak_memory = peak_memory(placement, plan.schedule);
  plan.steady_state = {};
  return plan;
}

void expect_valid(const Plan& plan, const Placement& placement) {
  for (const std::string& failure : check_plan(with_own_figures(plan, placement), placement).failures)
    ADD_FAILURE() << failure;
  EXPECT_EQ(plan.makespan, makespan_of(placement, plan.schedule));
  EXPECT_EQ(lower(plan, placement).micro_batches, plan.micro_batches);
}

TEST(Lengthen, RepeatsWhatRepeats) {
  const Placement placement = shape("v", {.devices = 3, .forward = 10, .training = false});
  const Plan plan = searched(placement, 8);
  ASSERT_GT(plan.steady_state.count, 0);
  const Plan longer = lengthened(plan, placement, 100);
  expect_valid(longer, placement);
  EXPECT_EQ(longer.micro_batches, 100);
  EXPECT_EQ(longer.makespan, plan.makespan + 92 * 10);
}

/// Whatever was searched, a request more costs what the busiest device takes.
TEST(Lengthen, KeepsTheBusiestDeviceBusy) {
  for (const char* name : {"v", "looped", "wave", "m", "k"}) {
    for (const int micro_batches : {1, 24}) {
      SCOPED_TRACE(name);
      const Placement placement = serving(name);
      const Plan plan = searched(placement, micro_batches);
      const Plan longer = lengthened(plan, placement, 100), longest = lengthened(plan, placement, 200);
      expect_valid(longer, placement);
      EXPECT_GE(longer.micro_batches, 100);
      EXPECT_EQ(longest.makespan - longer.makespan,
                Bounds(Instance(placement)).period(1) * (longest.micro_batches - longer.micro_batches));
    }
  }
}

TEST(Lengthen, LeavesALongPlanAlone) {
  const Placement placement = serving("wave");
  const Plan plan = searched(placement, 4);
  EXPECT_EQ(lengthened(plan, placement, 4).schedule, plan.schedule);
  EXPECT_EQ(lengthened(plan, placement, 0).schedule, plan.schedule);
  EXPECT_THROW(lengthened(plan, placement, 1 << 23), InputError);
}

}  // namespace
}  // namespace ostinato
