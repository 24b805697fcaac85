// SPDX-License-Identifier: Apache-2.0
// The curve of makespan over memory: every point holds, none is beaten by another, the ends are proved.

#include "search/pareto.h"

#include <gtest/gtest.h>

#include "search/files/error.h"
#include "search/placement/shapes.h"
#include "search/plan/orders.h"
#include "search/plan/plan_json.h"
#include "tests/search/checked.h"
#include "tests/search/random_plan.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::expect_holds;

SearchOptions options_for(int micro_batches) {
  return {.micro_batches = micro_batches, .time_limit_seconds = 0};
}

Nanoseconds value_of(const Plan& plan, const Placement& p) {
  return objective_value(plan.objective, p, plan.schedule);
}

/// What every curve must be. A later point may lack an earlier one's bound only where trying all schedules
/// took too long.
void expect_curve(const ParetoCurve& curve, const Placement& p) {
  ASSERT_FALSE(curve.plans.empty());
  EXPECT_FALSE(curve.cut_by_limit);
  for (std::size_t i = 0; i < curve.plans.size(); ++i) {
    const Plan& plan = curve.plans[i];
    ASSERT_TRUE(plan.capacity);
    expect_holds(plan, p);
    EXPECT_LE(plan.capacity->lower_bound, value_of(plan, p));
    if (i == 0) continue;
    const Plan& before = curve.plans[i - 1];
    EXPECT_LT(plan.capacity->memory, before.capacity->memory);
    EXPECT_GT(value_of(plan, p), value_of(before, p));
    if (before.capacity->by_exhaustion) continue;
    EXPECT_GE(plan.capacity->lower_bound, before.capacity->lower_bound);
  }
  EXPECT_EQ(curve.plans.back().capacity->memory, curve.least);
}

TEST(Pareto, OfAPipelineHasAPointForEveryMicroBatchInFlight) {
  const Placement p =
      shape("v", {.devices = 4, .forward = 1000, .backward = 1000, .weight = 1000, .memory = 2});
  const ParetoCurve curve = pareto_memory(p, options_for(8), 24);
  expect_curve(curve, p);
  // F = I = W = 1, 4 devices, 8 micro-batches: room for 4, 3 and 2 in flight takes 27, 31 and 41; one at a
  // time takes the whole round trip of 9 less what the last weight half leaves to the next micro-batch.
  std::vector<Nanoseconds> makespans;
  for (const Plan& plan : curve.plans) makespans.push_back(plan.makespan / 1000);
  ASSERT_EQ(makespans.size(), 4u);
  EXPECT_EQ((std::vector(makespans.begin(), makespans.begin() + 3)), (std::vector<Nanoseconds>{27, 31, 41}));
  for (const Plan& plan : curve.plans) {
    EXPECT_EQ(plan.capacity->lower_bound, plan.makespan)
        << "each is proved, by trying all schedules if need be";
    EXPECT_EQ(plan.lower_bound.makespan, 27'000)
        << "what is proved of less memory is not said of the placement";
  }
  EXPECT_TRUE(curve.plans[1].capacity->by_exhaustion);
  EXPECT_TRUE(curve.least_proved);
  EXPECT_EQ(curve.least, 2);
}

TEST(Pareto, ClaimsOfLessMemoryAreChecked) {
  const Placement p =
      shape("v", {.devices = 4, .forward = 1000, .backward = 1000, .weight = 1000, .memory = 2});
  Plan plan = pareto_memory(p, options_for(8), 24).plans[1];
  const auto fails = [&](const Plan& changed) { return !check_plan(changed, p).ok(); };
  EXPECT_FALSE(fails(plan));
  Plan changed = plan;
  changed.capacity->memory = 5;  // it holds 6
  EXPECT_TRUE(fails(changed));
  changed = plan;
  changed.capacity->memory = 8;  // 27 is possible there
  EXPECT_TRUE(fails(changed));
  changed = plan;
  changed.capacity->lower_bound = 32'000;  // above what it reaches itself
  EXPECT_TRUE(fails(changed));
  EXPECT_FALSE(fails(parse_plan(format_plan(plan, p), "plan.json", p, "")));
}

TEST(Pareto, OfOtherObjectivesHolds) {
  const Placement p =
      shape("v", {.devices = 3, .forward = 1000, .backward = 1300, .weight = 900, .memory = 2});
  for (const Objective objective : {Objective::span, Objective::latency}) {
    const SearchOptions options{.micro_batches = 5, .objective = objective, .time_limit_seconds = 0};
    expect_curve(pareto_memory(p, options, 8), p);
  }
}

TEST(Pareto, OfEveryShapeHolds) {
  for (const char* name : {"v", "x", "m", "nn", "k", "wave"}) {
    const Placement p = shape(name, {.devices = 4, .forward = 1000, .backward = 3000});
    expect_curve(pareto_memory(p, {.micro_batches = 6, .time_limit_seconds = 0, .effort = 10}, 6), p);
  }
}

TEST(Pareto, StaysWithinThePointsAskedFor) {
  Placement p = shape("v", {.devices = 4, .forward = 1000, .backward = 2000, .memory = 1'000'003});
  for (std::size_t d = 0; d < p.devices.size(); ++d) p.devices[d].static_memory = static_cast<Bytes>(d) * 77;
  const ParetoCurve curve = pareto_memory(p, options_for(6), 3);
  expect_curve(curve, p);
  EXPECT_LE(curve.plans.size(), 3u);
  EXPECT_EQ(curve.least, 1'000'003 + 3 * 77) << "the least is always there";
  EXPECT_EQ(pareto_memory(p, options_for(1), 3).plans.size(), 1u) << "one micro-batch needs no more";
}

TEST(Pareto, StartsWithinThePlacementsMemory) {
  const Placement p =
      shape("v", {.devices = 3, .forward = 1000, .backward = 2000, .memory = 5, .capacity = 11});
  const ParetoCurve curve = pareto_memory(p, options_for(6), 24);
  expect_curve(curve, p);
  EXPECT_EQ(curve.plans.front().capacity->memory, 10);
  Placement nothing = p;
  nothing.devices[0].memory = 4;
  EXPECT_THROW(pareto_memory(nothing, options_for(6), 24), InfeasibleError);
}

TEST(Pareto, GivesTheSameBytesAtAnyNumberOfThreads) {
  const Placement p = shape("wave", {.devices = 3, .forward = 1000, .backward = 1700, .weight = 900});
  const auto bytes = [&](int threads) {
    const SearchOptions options{.micro_batches = 5, .time_limit_seconds = 0, .threads = threads, .effort = 5};
    std::string text;
    for (const Plan& plan : pareto_memory(p, options, 4).plans) text += format_plan(plan, p);
    return text;
  };
  EXPECT_EQ(bytes(1), bytes(2));
  EXPECT_EQ(bytes(1), bytes(3));
}

TEST(Pareto, OfRandomPlacementsHolds) {
  test::Random random(5);
  int several = 0;
  for (int i = 0; i < 150; ++i) {
    Placement p = test::random_placement(random);
    if (random.chance(50)) test::limit_memory(p, test::random_plan(p, 4, random), random.between(0, 60));
    const SearchOptions options{.micro_batches = 4, .time_limit_seconds = 0, .effort = 5};
    try {
      const ParetoCurve curve = pareto_memory(p, options, 5);
      for (const Plan& plan : curve.plans) expect_holds(plan, p);
      several += curve.plans.size() > 1;
    } catch (const UndecidedError&) {  // random_plan() has found an order, the search has not
    }
  }
  EXPECT_GT(several, 5);
}

}  // namespace
}  // namespace ostinato
