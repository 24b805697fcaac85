// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/stretch.h"

#include <gtest/gtest.h>

#include "search/placement/shapes.h"
#include "search/plan/orders.h"
#include "search/schedule/steady.h"
#include "tests/search/checked.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

/// Tessel's times: forward 1, backward 3, shards 1 and 1.
Placement tessel(const std::string& name, Bytes capacity = kUnlimited) {
  return shape(name,
               {.forward = 1, .backward = 3, .shard_forward = 1, .shard_backward = 1, .capacity = capacity});
}

TEST(Stretch, RepeatsTheSteadyStateInTheSameMemory) {
  for (const char* name : {"v", "x", "m", "k", "wave"}) {
    const Placement p = tessel(name);
    const Instance in(p);
    const Plan few = test::searched(p, 32);
    ASSERT_GT(few.steady_state.count, 0) << name;
    Plan many = few;
    many.micro_batches += 5 * few.steady_state.unroll;
    many.schedule = stretch(in, few.schedule, few.steady_state, 5);
    many.makespan = makespan_of(p, many.schedule);
    many.span = span_of(p, many.schedule);
    many.lower_bound = {};
    many.optimal = {};
    many.by_exhaustion = {};
    many.steady_state = find_steady_state(in, many.micro_batches, many.schedule);
    test::expect_holds(many, p);
    EXPECT_EQ(many.makespan, few.makespan + 5 * few.steady_state.period) << name;
    EXPECT_EQ(peak_memory(p, many.schedule), few.peak_memory) << name;
    std::vector<ScheduledBlock> sorted = many.schedule;
    sort_schedule(p, sorted);
    EXPECT_EQ(sorted, many.schedule) << name;
  }
}

TEST(Stretch, CountsWhatEveryMicroBatchLeavesBehind) {
  for (const Bytes left : {1, -1}) {
    Placement p = test::on_devices(1);
    p.devices[0].static_memory = 1;
    test::add(p, "F", {0}, 3, {.memory = left});
    for (const Objective objective : {Objective::makespan, Objective::span, Objective::latency}) {
      const Plan plan = test::searched(p, 503, objective);
      EXPECT_EQ(plan.peak_memory[0], left > 0 ? 504 : 1);
    }
  }
}

TEST(Stretch, FewRepresentManyOnlyWhereAllIsGivenBack) {
  const Placement p = tessel("v", 4);
  const Instance in(p);
  EXPECT_EQ(representative(in, 100), 100);
  for (const int many : {1000, 1001, 1012, 1'000'000}) {
    const int few = representative(in, many);
    EXPECT_LT(few, 128);
    EXPECT_EQ((many - few) % 24, 0);
  }
  Placement keeps = p;
  keeps.blocks[0].memory += 1;
  keeps.devices[0].memory = 10'000;
  EXPECT_EQ(representative(Instance(keeps), 1000), 1000);
}

/// Whatever the number of micro-batches is a multiple of, and with room that binds or not.
TEST(Stretch, ManyMicroBatchesMeetTheirBound) {
  for (const char* name : {"v", "x", "m", "nn", "k", "wave", "looped"}) {
    for (const int many : {500, 523}) {
      const Plan plan = test::searched(tessel(name), many);
      EXPECT_TRUE(plan.optimal.makespan) << name << ", " << many;
    }
  }
  // The fewest memory at the least period is 6 at most (repetend_test.cpp).
  for (const char* name : {"v", "x", "m", "nn", "k"}) {
    const Plan plan = test::searched(tessel(name, 6), 500);
    EXPECT_LE(100 * (plan.makespan - plan.lower_bound.makespan), plan.lower_bound.makespan) << name;
  }
  for (const Objective objective : {Objective::makespan, Objective::span, Objective::latency}) {
    const Plan plan = test::searched(tessel("v", 4), 500, objective);
    EXPECT_EQ(plan.makespan, 4 * 503);
    EXPECT_TRUE(plan.optimal.makespan && plan.optimal.period);
  }
}

TEST(Stretch, ANamedScheduleThatRepeatsNothingIsStillBeaten) {
  // One block that takes no time and one device: every order is as good.
  Placement p = test::on_devices(2, 3);
  const int a = test::add(p, "a", {0}, 2, {.memory = 1});
  const int b = test::add(p, "b", {1}, 0, {.after = {a}});
  test::add(p, "c", {0}, 1, {.memory = -1, .after = {b}});
  const Plan plan = test::searched(p, 400);
  EXPECT_EQ(plan.makespan, 1200);
  EXPECT_TRUE(plan.optimal.makespan);
}

}  // namespace
}  // namespace ostinato
