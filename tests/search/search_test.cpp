// SPDX-License-Identifier: Apache-2.0
#include "search/search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "search/checker/checker.h"
#include "search/files/error.h"
#include "search/named/named.h"
#include "search/placement/shapes.h"
#include "search/plan/orders.h"
#include "search/plan/plan_json.h"
#include "tests/search/all_orders.h"
#include "tests/search/checked.h"
#include "tests/search/rounds.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::add;
using test::on_devices;
using test::searched;

/// Tessel's shapes: forward 1, backward 3, sharded blocks 1 and 1.
Placement tessel(const std::string& name, Bytes capacity = kUnlimited) {
  return shape(name,
               {.forward = 1, .backward = 3, .shard_forward = 1, .shard_backward = 1, .capacity = capacity});
}

struct Known {
  std::string shape;
  int micro_batches;
  Nanoseconds makespan;
  Bytes capacity = kUnlimited;
};

// Proved by other solvers (Z3, CP-SAT).
class TesselShapes : public testing::TestWithParam<Known> {};

TEST_P(TesselShapes, IsProvedOptimal) {
  const Known& known = GetParam();
  const Plan plan = searched(tessel(known.shape, known.capacity), known.micro_batches);
  EXPECT_EQ(plan.makespan, known.makespan);
  EXPECT_TRUE(plan.optimal.makespan);
}

INSTANTIATE_TEST_SUITE_P(Search, TesselShapes,
                         testing::Values(Known{"v", 1, 16}, Known{"v", 2, 20}, Known{"v", 4, 28},
                                         Known{"v", 6, 36}, Known{"v", 128, 524}, Known{"v", 128, 524, 4},
                                         Known{"x", 1, 16}, Known{"x", 2, 22}, Known{"x", 3, 28},
                                         Known{"x", 3, 30, 4}, Known{"k", 1, 10}, Known{"k", 2, 16},
                                         Known{"k", 3, 22}, Known{"k", 4, 28}, Known{"m", 1, 18},
                                         Known{"m", 2, 24}, Known{"m", 3, 30}, Known{"m", 4, 36},
                                         Known{"m", 8, 60}, Known{"nn", 1, 20}, Known{"nn", 2, 28},
                                         Known{"nn", 3, 36}),
                         [](const auto& test) {
                           const Known& known = test.param;
                           return fmt::format("{}_{}{}", known.shape, known.micro_batches,
                                              known.capacity < kUnlimited ? "_tight" : "");
                         });

TEST(Search, LooksOnlyBelowWhatIsKnown) {
  const Placement v = tessel("v", 3);
  SearchOptions options{.micro_batches = 8, .time_limit_seconds = 0};
  const Plan best = searched(v, 8);
  ASSERT_TRUE(best.optimal.makespan);
  options.below = best.makespan + 1;
  EXPECT_EQ(search(v, options).makespan, best.makespan);
  options.below = best.makespan;
  try {
    EXPECT_GE(search(v, options).makespan, best.makespan);  // whatever it met on its way
  } catch (const UndecidedError&) {
  }
}

TEST(Search, SaysNothingOfWhatItDidNotLookFor) {
  SearchOptions options{.micro_batches = 4, .time_limit_seconds = 0, .below = 1};
  EXPECT_THROW(search(tessel("v"), options), UndecidedError);  // and not that nothing fits
}

TEST(Search, MemoryOfFourKeepsVAtItsBound) {
  const Plan plan = searched(tessel("v", 4), 16);
  EXPECT_EQ(plan.makespan, 76);
  EXPECT_TRUE(plan.optimal.makespan);
  EXPECT_EQ(plan.steady_state.period, 4);
  EXPECT_TRUE(plan.optimal.period);
}

/// F = I = W = 1. One chunk a device, memory in micro-batches.
Placement split_chain(int devices, Bytes room) {
  return shape("v", {.devices = devices, .forward = 1, .backward = 1, .weight = 1, .capacity = room});
}

TEST(Search, FindsTheKnownOptimaOfZeroBubble) {
  EXPECT_EQ(searched(split_chain(4, 4), 8).makespan, 27);
  EXPECT_EQ(searched(split_chain(4, 3), 8).makespan, 31);
  EXPECT_EQ(searched(split_chain(4, 2), 8).makespan, 41);
}

/// The same with two chunks a device in a wave, memory in chunks.
Placement split_wave(Bytes room) {
  return shape("wave", {.forward = 1, .backward = 1, .weight = 1, .capacity = room});
}

TEST(Search, FindsTheKnownOptimaOfTwoChunks) {
  EXPECT_EQ(searched(split_wave(8), 8).makespan, 51);
  EXPECT_EQ(searched(split_wave(6), 8).makespan, 53);
  EXPECT_EQ(searched(split_wave(4), 8).makespan, 59);
}

/// The usual effort ends at 80.8 us, 5.5 % above its bound.
TEST(Search, ProvesWithMoreEffortWhatTheUsualLeavesOpen) {
  Placement looped =
      shape("looped", {.devices = 5, .chunks = 2, .forward = 10, .backward = 20, .capacity = 7});
  looped.link.latency = 2;
  const Plan plan =
      search(looped, {.micro_batches = 8, .time_limit_seconds = 0, .threads = 2, .effort = 400});
  EXPECT_EQ(plan.makespan, 796);
  EXPECT_TRUE(plan.optimal.makespan && plan.by_exhaustion.makespan);
  EXPECT_TRUE(check_plan(plan, looped).ok());
}

TEST(Search, GivesTheNamedScheduleThatIsAskedFor) {
  const Placement p = tessel("v");
  const Plan plan = search(p, {.micro_batches = 8, .method = "gpipe"});
  EXPECT_EQ(plan.search.method, "gpipe");
  EXPECT_EQ(plan.schedule, *earliest_starts(p, 8, *named_schedule("gpipe", p, 8).orders));
  EXPECT_THROW(search(p, {.micro_batches = 8, .method = "no such"}), InputError);
  EXPECT_THROW(search(p, {.micro_batches = 0}), InputError);
  EXPECT_THROW(search(tessel("v", 1), {.micro_batches = 8, .method = "gpipe"}), InputError);
}

TEST(Search, SaysInfeasibleWithTheProof) {
  Placement p = on_devices(1, 10);
  add(p, "a", {0}, 1, {.memory = 6});
  add(p, "b", {0}, 1, {.memory = 6});
  add(p, "c", {0}, 1, {.memory = -12, .after = {0, 1}});
  EXPECT_THROW(search(p, {.micro_batches = 1}), InfeasibleError);
  p.devices[0].memory = 12;
  EXPECT_EQ(searched(p, 3).makespan, 9);
}

TEST(Search, StopLeavesTheBestSoFar) {
  const std::atomic<bool> stop = true;
  const Placement p = split_chain(4, 2);
  const Plan plan = search(p, {.micro_batches = 16, .time_limit_seconds = 0, .stop = &stop});
  EXPECT_TRUE(plan.search.cut_by_limit);
  test::expect_holds(plan, p);
}

/// Two models that cross, of which the second's last backward is long: rules alone find 32.
TEST(Search, OfOneMicroBatchTheLatencyIsTheMakespan) {
  Placement p = test::on_devices(2);
  p.link = {.latency = 0, .bytes_per_second = 0};
  p.links[{1, 0}] = {.latency = 1, .bytes_per_second = 0};
  p.devices[0].memory = 3;
  p.devices[1].memory = 12;
  test::add(p, "F0", {0}, 4, {.memory = 2});
  test::add(p, "F1", {1}, 3, {.memory = 3, .after = {0}});
  test::add(p, "B1", {1}, 4, {.memory = -3, .after = {1}});
  test::add(p, "B0", {0}, 0, {.memory = -2, .after = {2}, .bytes = 12});
  test::add(p, "G1", {1}, 2, {.memory = 8});
  test::add(p, "G0", {0}, 2, {.memory = 2, .after = {4}, .bytes = 21});
  test::add(p, "C0", {0}, 4, {.memory = -2, .after = {5}});
  test::add(p, "C1", {1}, 14, {.memory = -8, .workspace = 1, .after = {6}});
  const Plan plan = search(p, {.micro_batches = 1, .objective = Objective::latency});
  EXPECT_EQ(objective_value(plan.objective, p, plan.schedule), 31);
  test::expect_holds(plan, p);
}

TEST(Search, OfOneMicroBatchTheLatencyIsProvedAsTheMakespanIs) {
  test::Dice random(31);
  int tried = 0;  // all schedules were
  for (int i = 0; i < test::rounds(100); ++i) {
    Placement p = test::any_small(random, 4 + random.below(5));
    test::add_memory(random, p);
    try {
      const Plan makespan = search(p, {.micro_batches = 1});
      const Plan latency = test::searched(p, 1, Objective::latency);
      EXPECT_EQ(latency.makespan, makespan.makespan);
      EXPECT_EQ(latency.optimal.objective, makespan.optimal.makespan);
      tried += latency.by_exhaustion.makespan;
    } catch (const InfeasibleError&) {
    } catch (const UndecidedError&) {
    }
  }
  EXPECT_GT(tried, 0);
}

}  // namespace
}  // namespace ostinato
