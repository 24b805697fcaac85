// SPDX-License-Identifier: Apache-2.0
#include "search/checker/bounds.h"

#include <gtest/gtest.h>

#include <limits>

#include "search/bounds/bounds.h"
#include "search/checker/checker.h"
#include "search/placement/instance.h"
#include "search/placement/shapes.h"
#include "search/search.h"
#include "tests/search/all_orders.h"
#include "tests/search/all_spans.h"
#include "tests/search/beside_optimum.h"
#include "tests/search/random_plan.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::add;
using test::on_devices;
using test::Random;

constexpr checker::Wide kAll = checker::kUnbounded;

Nanoseconds makespan_bound(const Placement& p, int n) {
  return static_cast<Nanoseconds>(checker::Bounds(p).makespan(n, kAll).value);
}

Nanoseconds period_bound(const Placement& p, int unroll) {
  return static_cast<Nanoseconds>(checker::Bounds(p).period(unroll).value);
}

TEST(CheckerBoundsTest, OneDeviceWithHeadAndTail) {
  // 4 devices, F = 1, B = 2: the last device works 3 a micro-batch, behind three F and before three B.
  const Placement p = shape("v", {.devices = 4, .forward = 1, .backward = 2});
  EXPECT_EQ(makespan_bound(p, 1), 12);
  EXPECT_EQ(makespan_bound(p, 8), 3 + 8 * 3 + 6);
  EXPECT_EQ(period_bound(p, 1), 3);
  EXPECT_EQ(period_bound(p, 5), 15);
}

TEST(CheckerBoundsTest, BlocksOnAllDevicesKeepTheOthersOut) {
  // 48 of work on a device, 3 before and 9 after in which no sharded block can run.
  const Placement p =
      shape("m", {.devices = 4, .forward = 1, .backward = 3, .shard_forward = 1, .shard_backward = 1});
  const checker::Bound bound = checker::Bounds(p).makespan(8, kAll);
  EXPECT_EQ(static_cast<int>(bound.value), 60);
  EXPECT_EQ(bound.why.substr(0, 3), "M6:");
}

TEST(CheckerBoundsTest, MemoryTimesTime) {
  // V, 4 devices, F = 1, B = 2, room for 3: a micro-batch holds device 0 for 12, so 12 micro-batches of three
  // at a time take 48, and three micro-batches repeat every 12.
  const Placement p = shape("v", {.devices = 4, .forward = 1, .backward = 2, .memory = 1, .capacity = 3});
  EXPECT_EQ(period_bound(p, 1), 4);
  EXPECT_EQ(period_bound(p, 3), 12);
  const checker::Bound bound = checker::Bounds(p).makespan(12, kAll);
  EXPECT_EQ(static_cast<int>(bound.value), 54);  // the last three wait for those before them, then go round
  EXPECT_EQ(bound.why.substr(0, 3), "M4:");
  const checker::Bound enough = checker::Bounds(p).makespan(12, 48);
  EXPECT_EQ(enough.why, "M3: the memory of device 0");
}

TEST(CheckerBoundsTest, SpanAndLatency) {
  const Placement p = shape("v", {.devices = 4, .forward = 1, .backward = 2});
  // Device 0 sees the whole of a micro-batch (S2), and works 3 * 8 (S1) on device 3 between 3 F and 3 B of
  // its own.
  EXPECT_EQ(static_cast<int>(checker::Bounds(p).span(1, kAll).value), 12);
  EXPECT_EQ(static_cast<int>(checker::Bounds(p).span(8, kAll).value), 33);
  EXPECT_EQ(static_cast<int>(checker::Bounds(p).latency().value), 12);
}

/// Zero bubble's inputs: times of one stage, of the last one apart, room in micro-batches.
Placement zero_bubble(int devices, Bytes room, bool uneven) {
  ShapeOptions options{.devices = devices, .forward = 290, .backward = 293, .weight = 192, .capacity = room};
  if (uneven) {
    options.forward = std::vector<Nanoseconds>{290, 290, 290, 417};
    options.backward = std::vector<Nanoseconds>{293, 293, 293, 387};
    options.weight = std::vector<Nanoseconds>{192, 192, 192, 328};
  }
  options.link.latency = 5;
  return shape("v", options);
}

TEST(CheckerBoundsTest, SpanUnderMemory) {
  // F = I = W = 1: device 0 has room for p forwards, and its first I cannot start before (2p - 1) F.
  for (const int p : {2, 5, 16}) {
    const Placement unit =
        shape("v", {.devices = p, .forward = 1, .backward = 1, .weight = 1, .capacity = p});
    for (const int n : {2 * p, 5 * p}) {
      EXPECT_EQ(static_cast<int>(checker::Bounds(unit).span(n, kAll).value), 3 * n + p - 1);
    }
  }
  // What zero bubble's own schedule reaches.
  const checker::Bound bound = checker::Bounds(zero_bubble(4, 4, true)).span(8, kAll);
  EXPECT_EQ(static_cast<int>(bound.value), 9715);
  EXPECT_EQ(bound.why.substr(0, 3), "S4:");
  EXPECT_EQ(static_cast<int>(checker::Bounds(zero_bubble(4, 3, true)).span(16, kAll).value), 19099);
}

TEST(CheckerBoundsTest, WholeStepsBeforeTheFirst) {
  // docs/bounds.md, S6. The first B on device 0 starts at least F + 1 + F + B + 1 = 9 after its first F: as
  // many F as there is room for, up to four, and idle time; or five.
  for (const auto& [room, idle] : {std::pair<Bytes, Nanoseconds>{3, 3}, {4, 1}, {5, 0}}) {
    Placement p = shape("v", {.devices = 2, .forward = 2, .backward = 3, .weight = 2, .capacity = room});
    p.link.latency = 1;
    const checker::Bound bound = checker::Bounds(p).span(6, kAll);
    EXPECT_EQ(static_cast<int>(bound.value), 6 * 7 + idle) << room;
    EXPECT_EQ(bound.why.substr(0, 2), idle > 0 ? "S6" : "S1") << room;
  }
}

/// There and back over two devices, with or without a weight half, in little memory.
Placement small_pipeline(test::Dice& random) {
  Placement p = on_devices(2, 1 + random.below(2));
  p.link.latency = random.below(2);
  const auto time = [&] { return 1 + random.below(4); };
  const bool split = random.chance(50);
  add(p, "F0", {0}, time(), {.memory = 1});
  add(p, "F1", {1}, time(), {.memory = 1, .after = {0}});
  add(p, "B1", {1}, time(), {.memory = -1, .after = {1}});
  add(p, "B0", {0}, time(), {.memory = split ? 0 : -1, .after = {2}});
  if (split) add(p, "W0", {0}, time(), {.memory = -1, .after = {3}});
  return p;
}

TEST(CheckerBoundsTest, NoOrderHasASmallerSpan) {
  test::Dice random(37);
  int round = 0;
  const auto draw = [&] {
    const int kind = round++ % 3;
    if (kind == 0) return test::Drawn{small_pipeline(random), 3};
    const int n = 1 + random.below(3);
    Placement p = test::any_small(random, test::most_blocks[n] - random.below(2));
    if (kind == 1) test::add_memory(random, p);
    return test::Drawn{p, n};
  };
  test::Beside found = test::beside_optimum<test::AllSpans>(
      600, draw, [](const checker::Bounds& bounds, int n) { return bounds.span(n, kAll); });
  EXPECT_GE(found.tight, 300);
  EXPECT_GE(found.by["S4"], 40);
  EXPECT_GE(found.by["S6"], 10);
}

TEST(CheckerBoundsTest, ClaimsOfTheSpanAreProvedAgain) {
  test::Dice random(43);
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    const int n = 1 + random.below(3);
    Placement p = test::any_small(random, test::most_blocks[n] - random.below(2));
    test::add_memory(random, p);
    const std::optional<Nanoseconds> least = test::AllSpans(p, n).least();
    if (!least) continue;
    Plan plan = search(p, {.micro_batches = n, .objective = Objective::span, .time_limit_seconds = 0});
    ASSERT_EQ(check_plan(plan, p).failures, std::vector<std::string>{});
    ASSERT_GE(plan.span, *least);
    plan.lower_bound.objective = *least + 1;
    plan.optimal.objective = plan.span == *least + 1;
    ASSERT_FALSE(check_plan(plan, p).ok());
  }
}

TEST(CheckerBoundsTest, BytesThatAHalfOfABackwardTakesAreThoseOfTheOther) {
  const Placement p = test::split_and_recomputed();
  EXPECT_EQ(period_bound(p, 5), 5 * (2 * 2 + 1 * 5 + 4 * 3) / 3);  // 30 by work
  EXPECT_EQ(period_bound(p, 5), Bounds(Instance(p)).period(5));
}

TEST(CheckerBoundsTest, BytesThatAreNotMatchedProveNothing) {
  Placement p = on_devices(1, 10);
  add(p, "A", {0}, 5, {.memory = 4});
  add(p, "B", {0}, 5, {.memory = -6, .after = {0}});  // gives back 2 that nothing took
  EXPECT_EQ(makespan_bound(p, 10), 100);
  p.blocks[1].memory = -4;  // 10 * 4 bytes * 10 ns / 10 bytes is less than the work
  EXPECT_EQ(makespan_bound(p, 10), 100);
  p.devices[0].memory = 4;
  p.blocks[1].after[0].bytes = 0;
  p.devices.push_back({"far", "", kUnlimited, 0});
  add(p, "C", {1}, 30, {.after = {0}});
  p.blocks[1].after.push_back({2, 0});
  EXPECT_EQ(makespan_bound(p, 10), 400);  // each micro-batch holds all 4 bytes for 5 + 30 + 5
  p.blocks[1].memory = -6;
  EXPECT_EQ(makespan_bound(p, 10), 5 + 300 + 5);
}

TEST(CheckerBoundsTest, LargeFiguresDoNotOverflow) {
  constexpr Bytes huge = std::numeric_limits<Bytes>::max() / 4;
  Placement p = on_devices(1, 2);
  add(p, "A", {0}, huge, {.memory = 1, .workspace = huge});
  add(p, "B", {0}, 1, {.memory = -1, .after = {0}});
  const checker::Bounds bounds(p);
  EXPECT_TRUE(bounds.makespan(std::numeric_limits<int>::max(), kAll).value >
              std::numeric_limits<Nanoseconds>::max());
  EXPECT_TRUE(bounds.period(std::numeric_limits<int>::max()).value > 0);
}

TEST(CheckerBoundsTest, StopsWhereTheClaimIsReached) {
  const Placement p =
      shape("m", {.devices = 4, .forward = 1, .backward = 3, .shard_forward = 1, .shard_backward = 1});
  const checker::Bound bound = checker::Bounds(p).makespan(8, 20);
  EXPECT_GE(static_cast<int>(bound.value), 20);
  EXPECT_EQ(bound.why.substr(0, 3), "M2:");
}

Nanoseconds latency_of_plan(const Plan& plan, const Placement& p) {
  std::vector<Nanoseconds> first(plan.micro_batches, std::numeric_limits<Nanoseconds>::max()),
      last(plan.micro_batches, 0);
  for (const ScheduledBlock& step : plan.schedule) {
    first[step.micro_batch] = std::min(first[step.micro_batch], step.start);
    last[step.micro_batch] = std::max(last[step.micro_batch], step.start + p.blocks[step.block].time);
  }
  Nanoseconds longest = 0;
  for (int i = 0; i < plan.micro_batches; ++i) longest = std::max(longest, last[i] - first[i]);
  return longest;
}

TEST(CheckerBoundsTest, NoValidPlanIsBelowABound) {
  int tight = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    Random random(seed);
    Placement p = test::random_placement(random);
    const int n = static_cast<int>(random.between(1, 4));
    test::limit_memory(p, test::random_plan(p, n, random), 0);
    const checker::Bounds bounds(p);
    const checker::Bound makespan = bounds.makespan(n, kAll);
    const checker::Bound span = bounds.span(n, kAll);
    const checker::Bound latency = bounds.latency();
    bool met = false;
    for (int attempt = 0; attempt < 20; ++attempt) {
      const Plan plan = test::random_plan(p, n, random, attempt % 2 * 20);
      if (!check_plan(plan, p).ok()) continue;  // more memory than the first plan
      ASSERT_LE(makespan.value, plan.makespan) << "seed " << seed << " " << makespan.why;
      ASSERT_LE(span.value, plan.span) << "seed " << seed << " " << span.why;
      ASSERT_LE(latency.value, latency_of_plan(plan, p)) << "seed " << seed << " " << latency.why;
      met = met || makespan.value == plan.makespan;
    }
    tight += met ? 1 : 0;
  }
  EXPECT_GE(tight, 500);  // the plans are good enough to meet the bounds
}

/// The plan of one group of micro-batches, repeated every `period`.
Plan repeated(const Plan& group, Nanoseconds period, int times) {
  Plan plan = group;
  plan.micro_batches = group.micro_batches * times;
  plan.schedule.clear();
  for (int k = 0; k < times; ++k) {
    for (ScheduledBlock step : group.schedule) {
      step.micro_batch += k * group.micro_batches;
      step.start += k * period;
      plan.schedule.push_back(step);
    }
  }
  plan.steady_state = {.period = period, .unroll = group.micro_batches, .first = 0, .count = times};
  return plan;
}

TEST(CheckerBoundsTest, NothingRepeatsFasterThanThePeriodBound) {
  int tight = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Random random(seed);
    Placement p = test::random_placement(random);
    // What is taken is given back, so that a group can repeat for ever.
    for (Block& block : p.blocks) block.memory = 0;
    p.blocks.front().memory = 3;
    p.blocks.back().memory -= 3;
    p.blocks.back().devices = p.blocks.front().devices;
    const Plan group = test::random_plan(p, static_cast<int>(random.between(1, 2)), random);
    for (Nanoseconds period = 1; period <= group.makespan; ++period) {
      Plan plan = repeated(group, period, 12);
      test::complete_figures(plan, p);
      if (!check_plan(plan, p).ok()) continue;
      test::limit_memory(p, plan, 0);
      const checker::Bound bound = checker::Bounds(p).period(group.micro_batches);
      ASSERT_LE(bound.value, period) << "seed " << seed << " " << bound.why;
      tight += bound.value == period ? 1 : 0;
      break;
    }
  }
  EXPECT_GE(tight, 15);
}

TEST(CheckerBoundsTest, TheSearchClaimsWhatTheCheckerProves) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    Placement p = test::random_placement(random);
    const Plan plan = test::random_plan(p, static_cast<int>(random.between(1, 5)), random);
    if (random.chance(70)) test::limit_memory(p, plan, random.between(0, 3));
    const Instance instance(p);
    const Bounds theirs(instance);
    const checker::Bounds ours(p);
    for (const int n : {1, 3, 20}) {
      ASSERT_GE(ours.makespan(n, kAll).value, theirs.makespan(n)) << "seed " << seed << ", n " << n;
      ASSERT_GE(ours.period(n).value, theirs.period(n)) << "seed " << seed << ", n " << n;
      ASSERT_GE(ours.span(n, kAll).value, theirs.span(n)) << "seed " << seed << ", n " << n;
    }
    ASSERT_GE(ours.latency().value, theirs.latency()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ostinato
