// Plans for more micro-batches than were searched for: valid, and at the rate of the repetend.

#include "plugin/lengthen.h"

#include <gtest/gtest.h>

#include "plugin/lower.h"
#include "search/checker/checker.h"
#include "search/files/error.h"
#include "search/placement/shapes.h"
#include "search/plan/orders.h"
#include "search/search.h"

namespace ostinato {
namespace {

Placement serving(const std::string& name) {
  return shape(name, {.devices = 3, .forward = {{10, 30, 20}}, .shard_forward = 5, .training = false});
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

TEST(Lengthen, RepeatsWhatRepeats) {
  for (const char* name : {"looped", "wave", "m"}) {
    SCOPED_TRACE(name);
    const Placement placement = serving(name);
    const Plan plan = searched(placement, 24);
    ASSERT_GT(plan.steady_state.count, 0);
    const Plan longer = lengthened(plan, placement, 100);
    EXPECT_GE(longer.micro_batches, 100);
    EXPECT_LT(longer.micro_batches, 100 + plan.steady_state.unroll);
    EXPECT_EQ((longer.makespan - plan.makespan) * plan.steady_state.unroll,
              plan.steady_state.period * (longer.micro_batches - 24));
    for (const std::string& failure : check_plan(with_own_figures(longer, placement), placement).failures)
      ADD_FAILURE() << failure;
    EXPECT_EQ(lower(longer, placement).micro_batches, longer.micro_batches);
  }
}

TEST(Lengthen, PutsCopiesInARowWhereNothingRepeats) {
  const Placement placement = serving("wave");
  const Plan plan = searched(placement, 1);
  ASSERT_EQ(plan.steady_state.count, 0);
  const Plan longer = lengthened(plan, placement, 5);
  EXPECT_EQ(longer.micro_batches, 5);
  EXPECT_EQ(longer.makespan, 5 * plan.makespan);
  for (const std::string& failure : check_plan(with_own_figures(longer, placement), placement).failures)
    ADD_FAILURE() << failure;
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
