// SPDX-License-Identifier: Apache-2.0
#include "search/plan/waiting.h"

#include <gtest/gtest.h>

#include "search/placement/shapes.h"
#include "search/search.h"

namespace ostinato {
namespace {

TEST(Waiting, AddsUpToTheMakespan) {
  for (const std::string& kind : shape_names()) {
    for (const int micro_batches : {1, 3, 40}) {
      const Placement placement = shape(kind, {.devices = 4, .forward = 3, .backward = 5});
      const Plan plan = search(placement, {.micro_batches = micro_batches, .time_limit_seconds = 1});
      const Waiting waits = waiting_of_busiest(placement, plan);
      EXPECT_EQ(waits.work + waits.in_all(), plan.makespan) << kind << ' ' << micro_batches;
      for (const Nanoseconds part :
           {waits.before_first, waits.warm_up, waits.repetends, waits.cool_down, waits.after_last})
        EXPECT_GE(part, 0) << kind << ' ' << micro_batches;
      if (plan.steady_state.count == 0) {
        EXPECT_EQ(waits.warm_up + waits.repetends, 0);
      }
    }
  }
}

// 1F1B of F = B = 1 on two devices: the first waits for the first backward and, at the end, for each.
TEST(Waiting, IsWhereOneFOneBWaits) {
  const Placement placement = shape("v", {.devices = 2, .forward = 1, .backward = 1});
  const Plan plan = search(placement, {.micro_batches = 4, .method = "1f1b"});
  const Waiting waits = waiting_of_busiest(placement, plan);
  EXPECT_EQ(waits.device, 0);
  EXPECT_EQ(waits.work, 8);
  EXPECT_EQ(waits.before_first + waits.after_last, 0);
  EXPECT_EQ(waits.in_all(), 2);
}

// The repetend of a V works all the time on every device; what is lost is lost at the ends.
TEST(Waiting, IsNotInRepetendsThatWorkAllTheTime) {
  const Placement placement = shape("v", {.devices = 4, .forward = 1, .backward = 2});
  const Plan plan = search(placement, {.micro_batches = 200, .time_limit_seconds = 5});
  ASSERT_GT(plan.steady_state.count, 0);
  const Waiting waits = waiting_of_busiest(placement, plan);
  EXPECT_EQ(waits.repetends, 0);
  EXPECT_EQ(waits.in_all(), 9);  // (D - 1)(F + B)
}

}  // namespace
}  // namespace ostinato
