// SPDX-License-Identifier: Apache-2.0
#include "search/repetend/sweep.h"

#include <gtest/gtest.h>

#include <optional>

#include "search/placement/shapes.h"
#include "search/plan/orders.h"
#include "tests/search/checked.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

Placement wave(int devices, Bytes capacity) {
  return shape("wave", {.devices = devices, .forward = 1, .backward = 2, .capacity = capacity});
}

Placement nn(int devices) {
  return shape("nn", {.devices = devices,
                      .forward = 1,
                      .backward = 3,
                      .shard_forward = 1,
                      .shard_backward = 1,
                      .capacity = devices});
}

std::optional<Repetend> swept(const Placement& p, int unroll, Nanoseconds period) {
  const Instance in(p);
  const Sweeps sweeps(in);
  SweepEffort effort;
  EXPECT_TRUE(sweeps.apply(unroll)) << p.name;
  std::optional<Repetend> r = sweeps.find(unroll, period, effort);
  EXPECT_LT(effort.work, SweepEffort().work);
  return r;
}

/// The checker finds nothing wrong with the repetition.
void expect_repeats(const Placement& p, const std::optional<Repetend>& r) {
  ASSERT_TRUE(r.has_value()) << p.name;
  const int blocks = static_cast<int>(p.blocks.size());
  Plan plan;
  plan.placement_name = p.name;
  plan.micro_batches = 2 * static_cast<int>(p.devices.size()) * r->unroll;
  for (int m = 0; m < plan.micro_batches; ++m) {
    for (int b = 0; b < blocks; ++b)
      plan.schedule.push_back({b, m, r->start[m % r->unroll * blocks + b] + m / r->unroll * r->period});
  }
  sort_schedule(p, plan.schedule);
  plan.makespan = makespan_of(p, plan.schedule);
  plan.span = span_of(p, plan.schedule);
  plan.peak_memory = peak_memory(p, plan.schedule);
  test::expect_holds(plan, p);
}

TEST(Sweep, ReachesWhatExactSearchProves) {
  const Placement p = wave(8, 5);
  const Instance in(p);
  const Repetend exact = find_repetend(in, Bounds(in), 1, {});
  ASSERT_EQ(exact.period, 13);
  ASSERT_TRUE(exact.period_proved);
  EXPECT_FALSE(swept(p, 1, 12).has_value());
  expect_repeats(p, swept(p, 1, 13));
}

TEST(Sweep, WavesOfManyDevicesTakeFourteen) {
  for (const int devices : {16, 32, 64})
    expect_repeats(wave(devices, devices / 2 + 1), swept(wave(devices, devices / 2 + 1), 1, 14));
}

TEST(Sweep, SeveralMicroBatchesAndBlocksOnAllDevices) {
  for (const int devices : {8, 16}) expect_repeats(nn(devices), swept(nn(devices), 2, 19));
}

TEST(Sweep, TimesThatNothingDivides) {
  const Placement p =
      shape("v", {.devices = 8, .forward = 1009, .backward = 2003, .capacity = 6, .link = {.latency = 13}});
  const Instance in(p);
  const Sweeps sweeps(in);
  EXPECT_EQ(sweeps.grid(), 1);
  expect_repeats(p, swept(p, 1, 6200));
  expect_repeats(p, swept(p, 2, 12'300));
}

TEST(Sweep, FindsNoPeriodThatIsTooShort) {
  for (const char* name : {"v", "wave", "looped", "x"}) {
    for (const Bytes room : {2, 3, 4}) {
      const Placement p = shape(name, {.forward = 1, .backward = 2, .weight = 1, .capacity = room});
      const Instance in(p);
      const Repetend exact = find_repetend(in, Bounds(in), 1, {});
      const Sweeps sweeps(in);
      if (!sweeps.apply(1) || !exact.period_proved) continue;
      SweepEffort effort;
      EXPECT_FALSE(sweeps.find(1, exact.period - 1, effort).has_value()) << name << " in " << room;
      if (const auto r = sweeps.find(1, exact.period + 1, effort)) expect_repeats(p, r);
    }
  }
}

TEST(Sweep, AppliesToTreesUnderALimitOfMemoryAlone) {
  const auto applies = [](const Placement& p) {
    const Instance in(p);
    return Sweeps(in).apply(1);
  };
  EXPECT_TRUE(applies(wave(4, 4)));
  EXPECT_FALSE(applies(wave(4, kUnlimited)));
  Placement diamond = test::on_devices(2, 4);
  const int first = test::add(diamond, "first", {0}, 1, {.memory = 1});
  const int left = test::add(diamond, "left", {0}, 1, {.after = {first}});
  const int right = test::add(diamond, "right", {1}, 1, {.after = {first}});
  test::add(diamond, "last", {0}, 1, {.memory = -1, .after = {left, right}});
  EXPECT_FALSE(applies(diamond));
  Placement idle = wave(4, 4);
  idle.blocks[0].time = 0;
  EXPECT_FALSE(applies(idle));
  const Placement many = wave(512, 300);
  const Instance in(many);
  EXPECT_TRUE(Sweeps(in).apply(1));
  EXPECT_FALSE(Sweeps(in).apply(2));
}

TEST(Sweep, TheWorkIsCounted) {
  const Placement p = nn(8);
  const Instance in(p);
  const Sweeps sweeps(in);
  SweepEffort once, again, little{.work = 1};
  const auto first = sweeps.find(2, 19, once);
  const auto second = sweeps.find(2, 19, again);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->start, second->start);
  EXPECT_EQ(once.work, again.work);
  sweeps.find(2, 17, little);
  EXPECT_GT(little.work, -1'000'000);  // the narrowest beam, once
}

TEST(Sweep, PlansKeepTheRate) {
  // 16 a micro-batch, where each starts at a multiple of the period that list scheduling finds.
  const Placement p = wave(32, 17);
  const Plan plan = test::searched(p, 256);
  EXPECT_LE(plan.makespan, 256 * 14 + 6 * 32);
}

TEST(Sweep, ReachesTwoMicroBatchesOnManyDevices) {
  const Placement p = nn(64);
  const Instance in(p);
  const Bounds bounds(in);
  const std::vector<Repetend> listed = repetends_of_growing_rate(in, bounds, 1, {});
  ASSERT_EQ(listed.back().period, 10);
  const std::vector<Repetend> swept = swept_repetends(in, bounds, listed, {});
  ASSERT_FALSE(swept.empty());
  EXPECT_EQ(swept.back().unroll, 2);
  EXPECT_EQ(swept.back().period, 19);
  expect_repeats(p, swept.back());
}

}  // namespace
}  // namespace ostinato
