// SPDX-License-Identifier: Apache-2.0
#include "search/repetend/repetend.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "search/placement/shapes.h"
#include "search/plan/orders.h"
#include "search/repetend/list.h"
#include "tests/search/checked.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

Repetend repetend_of(const Placement& p, int unroll) {
  const Instance in(p);
  return find_repetend(in, Bounds(in), unroll, {});
}

TEST(Repetend, OneThatCoversThreeMicroBatchesBeatsThoseThatCoverOne) {
  // DESIGN's example: V, forward 1, backward 2, room for 3.
  const Placement p = shape("v", {.forward = 1, .backward = 2, .capacity = 3});
  EXPECT_EQ(repetend_of(p, 1).period, 6);
  EXPECT_EQ(repetend_of(p, 3).period, 12);
  const Instance in(p);
  EXPECT_EQ(Bounds(in).period(3), 12);
}

TEST(Repetend, AFractionOfANanosecondIsNotLeftOut) {
  // One micro-batch takes 5, the bound of 4.25 rounded up, and four take 18.
  const Placement p = shape("v", {.devices = 8, .forward = 1, .backward = 1, .weight = 1, .capacity = 4});
  const Instance in(p);
  const Repetend best = repetends_of_growing_rate(in, Bounds(in), kMostUnroll, {}).back();
  EXPECT_EQ(best.unroll, 4);
  EXPECT_EQ(best.period, 18);
}

TEST(Repetend, ListsMicroBatchesThatBeginABeatApart) {
  // 908 apart, they wait at every crossing; 605 apart, at none.
  ShapeOptions options{.devices = 32, .forward = 298, .backward = 297, .weight = 188, .capacity = 24};
  options.link.latency = 5;
  const Placement p = shape("v", options);
  EXPECT_TRUE(list_repetend(Instance(p), 2, 3 * 605));
}

TEST(Repetend, FiveMicroBatchesReachABetterRateThanFour) {
  ShapeOptions options{.devices = 16, .forward = 298, .backward = 297, .weight = 188, .capacity = 12};
  options.link.latency = 5;
  const Placement p = shape("v", options);
  const Instance in(p);
  const std::vector<Repetend> found = repetends_of_growing_rate(in, Bounds(in), kMostUnroll, {});
  ASSERT_EQ(found.back().unroll, 5);
  EXPECT_EQ(found[found.size() - 2].period, 1810);  // of two
  EXPECT_LT(found.back().period, 5 * 890);
}

TEST(Repetend, WithPatienceTheBestIsTheSameAtAnyUnitOfTime) {
  // Quick searches spend their work on a period in the middle, which depends on the unit.
  for (const Nanoseconds unit : {1, 100}) {
    const Placement p =
        shape("wave",
              {.devices = 5, .chunks = 2, .forward = unit, .backward = 2 * unit, .memory = 1, .capacity = 6});
    const Instance in(p);
    const RepetendOptions patient{.work = 300'000'000, .part = 8};
    const Repetend one = find_repetend(in, Bounds(in), 1, patient);
    EXPECT_EQ(one.period, 8 * unit);
    const std::vector<Repetend> better = repetends_of_growing_rate(in, Bounds(in), 4, patient, &one);
    ASSERT_FALSE(better.empty());
    EXPECT_EQ(better.back().unroll, 4);
    EXPECT_EQ(better.back().period, 29 * unit);
  }
}

TEST(Repetend, ReachesTheBoundOfTesselsShapesForwardOnly) {
  for (const auto& [name, period] : {std::pair{"v", 1}, {"x", 2}, {"m", 2}, {"nn", 3}, {"k", 2}}) {
    const Placement p = shape(name, {.forward = 1, .shard_forward = 1, .training = false});
    const Repetend r = repetend_of(p, 1);
    EXPECT_EQ(r.period, period) << name;
    EXPECT_TRUE(r.period_proved) << name;
  }
}

/// Two steps of the repetition never meet on a device, and every input is there in time.
void expect_repeats(const Placement& p, const Repetend& r) {
  const Instance in(p);
  std::vector<ScheduledBlock> schedule;
  const int micro_batches = 20 * r.unroll;
  for (int m = 0; m < micro_batches; ++m) {
    for (int b = 0; b < in.blocks(); ++b) {
      const std::size_t item = m % r.unroll * in.blocks() + b;
      schedule.push_back({b, m, r.start[item] + m / r.unroll * r.period});
    }
  }
  sort_schedule(p, schedule);
  Plan plan;
  plan.micro_batches = micro_batches;
  plan.schedule = schedule;
  plan.makespan = makespan_of(p, schedule);
  plan.span = span_of(p, schedule);
  plan.peak_memory = peak_memory(p, schedule);
  plan.placement_name = p.name;
  test::expect_holds(plan, p);
}

TEST(Repetend, RepeatsWithinTheMemory) {
  for (const Bytes room : {2, 3, 5}) {
    const Placement p = shape("v", {.forward = 3, .backward = 4, .weight = 2, .capacity = room});
    for (const int unroll : {1, 2, 3}) {
      const Repetend r = repetend_of(p, unroll);
      ASSERT_GT(r.period, 0);
      expect_repeats(p, r);
    }
  }
}

/// Tessel's shapes: forward 1, backward 3, shards 1 and 1 that keep nothing.
Placement tessel(const std::string& name, int devices) {
  return shape(name,
               {.devices = devices, .forward = 1, .backward = 3, .shard_forward = 1, .shard_backward = 1});
}

struct Fewest {
  const char* shape;
  int devices;
  Nanoseconds period;
  Bytes memory;
};

class FewestMemory : public testing::TestWithParam<Fewest> {};

/// Tessel-fast needs 6, 7, 9 for M and 6, 7, 10 for NN on 4, 5, 6 devices.
INSTANTIATE_TEST_SUITE_P(Repetend, FewestMemory,
                         testing::Values(Fewest{"v", 4, 4, 4}, Fewest{"x", 4, 8, 4}, Fewest{"k", 4, 6, 3},
                                         Fewest{"m", 4, 6, 5}, Fewest{"m", 5, 6, 7}, Fewest{"m", 6, 6, 8},
                                         Fewest{"nn", 4, 8, 6}, Fewest{"nn", 5, 8, 7}, Fewest{"nn", 6, 8, 8},
                                         Fewest{"multimodal", 4, 8, 6}, Fewest{"nn-first", 4, 8, 5},
                                         Fewest{"nn-first", 5, 8, 7}),
                         [](const auto& test) {
                           std::string name = test.param.shape;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + std::to_string(test.param.devices);
                         });

TEST_P(FewestMemory, IsReachedAndProved) {
  const Fewest& expected = GetParam();
  const Placement p = tessel(expected.shape, expected.devices);
  const Instance in(p);
  const Repetend r = with_least_memory(in, repetend_of(p, 1), {});
  EXPECT_EQ(r.period, expected.period);
  EXPECT_EQ(memory_of(in, r).largest, expected.memory);
  EXPECT_TRUE(r.period_proved && r.memory_proved);
  expect_repeats(p, r);
  // What the flag says, asked once more: nothing fits into one less.
  Placement less = p;
  for (Device& device : less.devices) device.memory = expected.memory - 1;
  const Instance in_less(less);
  EXPECT_EQ(find_repetend(in_less, Bounds(in_less), 1, {.below = expected.period + 1}).period, 0);
}

TEST(Repetend, ReachesTheBoundOnManyDevices) {
  for (const char* name : {"v", "x", "m", "nn", "nn-first", "multimodal", "k", "looped", "wave"}) {
    for (const int devices : {16, 64, 256}) {
      const Placement p = tessel(name, devices);
      const Repetend r = repetend_of(p, 1);
      EXPECT_EQ(r.period, Instance(p).heaviest_load()) << name << " on " << devices;
      EXPECT_TRUE(r.period_proved);
      if (devices == 16) expect_repeats(p, r);
    }
  }
}

TEST(Repetend, ListSchedulingNumbersSeveralMicroBatchesInOrder) {
  for (const char* name : {"v", "x", "m", "wave"}) {
    for (const int unroll : {2, 3, 5}) {
      const Placement p = tessel(name, 6);
      const auto r = list_repetend(Instance(p), unroll, unroll * Instance(p).heaviest_load());
      ASSERT_TRUE(r) << name;
      expect_repeats(p, *r);
    }
  }
}

TEST(Repetend, ListSchedulingKeepsToTheMemory) {
  Placement p = tessel("v", 8);
  for (Device& device : p.devices) device.memory = 4;
  EXPECT_FALSE(list_repetend(Instance(p), 1, 4));  // P2: 32 / 4
  const auto r = list_repetend(Instance(p), 1, 8);
  ASSERT_TRUE(r);
  expect_repeats(p, *r);
}

TEST(Repetend, OthersOfTheSamePeriodFit) {
  const Placement wave = shape("wave", {.devices = 4, .chunks = 4, .capacity = 14});
  const Placement nn = shape("nn", {.devices = 4, .forward = 1, .backward = 3, .capacity = 6});
  for (const Placement& p : {wave, nn}) {
    const Instance in(p);
    const Repetend like = repetends_of_growing_rate(in, Bounds(in), kMostUnroll, {}).back();
    const std::vector<Repetend> others = others_like(in, like, {});
    EXPECT_GE(others.size(), 2U) << p.name;
    for (const Repetend& other : others) {
      EXPECT_EQ(other.period, like.period);
      EXPECT_EQ(other.unroll, like.unroll);
      expect_repeats(p, other);
    }
    const auto same = [](const Repetend& a, const Repetend& b) { return a.start == b.start; };
    for (std::size_t i = 0; i < others.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(same(others[i], others[j])) << p.name;
  }
}

TEST(Repetend, CountsTransfers) {
  Placement p = test::on_devices(2, 1);
  p.link.latency = 5;
  test::add(p, "F0", {0}, 1, {.memory = 1});
  test::add(p, "F1", {1}, 1, {.memory = 1, .after = {0}});
  test::add(p, "B1", {1}, 1, {.memory = -1, .after = {1}});
  test::add(p, "B0", {0}, 1, {.memory = -1, .after = {2}});
  // Room for one on device 0: it is held for 1 + 5 + 2 + 5 + 1.
  const Repetend r = repetend_of(p, 1);
  EXPECT_EQ(r.period, 14);
  expect_repeats(p, r);
}

TEST(Repetend, NoneWhereNothingFits) {
  Placement p = test::on_devices(1, 1);
  test::add(p, "F", {0}, 1, {.memory = 2});
  test::add(p, "B", {0}, 1, {.memory = -2, .after = {0}});
  EXPECT_EQ(repetend_of(p, 1).period, 0);
}

}  // namespace
}  // namespace ostinato
