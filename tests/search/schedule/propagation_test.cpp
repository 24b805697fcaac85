// SPDX-License-Identifier: Apache-2.0
// What the propagation says of every schedule that is short enough, held against schedules.

#include "search/schedule/propagation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "search/placement/shapes.h"
#include "tests/search/random_plan.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::add;
using test::on_devices;

/// Per block, the starts of the plan in the order of time: what identical micro-batches are renamed to.
std::vector<std::vector<Nanoseconds>> starts_of(const Plan& plan, const Placement& p) {
  std::vector<std::vector<Nanoseconds>> starts(p.blocks.size());
  for (const ScheduledBlock& s : plan.schedule) starts[s.block].push_back(s.start);
  for (auto& list : starts) std::sort(list.begin(), list.end());
  return starts;
}

void expect_true_of(const Propagation& common, const Plan& plan, const Placement& p) {
  const auto starts = starts_of(plan, p);
  for (int b = 0; b < static_cast<int>(starts.size()); ++b) {
    for (int i = 0; i < plan.micro_batches; ++i) {
      const Nanoseconds start = starts[b][i];
      EXPECT_GE(start, common.head(b, i));
      EXPECT_GE(plan.makespan - start - p.blocks[b].time, common.tail(b, i));
      for (int a = 0; a < static_cast<int>(starts.size()); ++a) {
        if (!common.conflict(a, b)) continue;
        const auto earlier = std::count_if(starts[a].begin(), starts[a].end(),
                                           [&](Nanoseconds other) { return other < start; });
        EXPECT_GE(earlier, common.before(a, b, i));
        EXPECT_GE(plan.micro_batches - earlier, common.after(b, a, i));
      }
    }
  }
}

TEST(Propagation, WhatItSaysIsTrueOfEveryScheduleThatIsShortEnough) {
  test::Random random(5);
  int told = 0;
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE(i);
    Placement p = test::random_placement(random);
    const int n = static_cast<int>(random.between(1, 6));
    const Plan plan = test::random_plan(p, n, random, 0);
    test::limit_memory(p, plan, random.between(0, 2));
    const Instance in(p);
    if (std::any_of(p.blocks.begin(), p.blocks.end(), [](const Block& b) { return b.time == 0; }) ||
        !Propagation::affordable(in, n))
      continue;
    const Instance mirror = in.reversed();
    Propagation common(in, mirror, n);
    // First for longer schedules, then on from there.
    ASSERT_TRUE(common.run(plan.makespan + random.between(2, 30)));
    ASSERT_TRUE(common.run(plan.makespan + 1));
    expect_true_of(common, plan, p);
    ++told;
  }
  EXPECT_GT(told, 200);
}

/// A chain of F = 1, B = 2 with room for `room` micro-batches a device: the known optima of 1F1B's kind.
TEST(Propagation, ProvesARoundTripThatMemoryForces) {
  const Placement p = shape("v", {.devices = 4, .forward = 1, .backward = 2, .capacity = 1});
  const Instance in(p);
  const Instance mirror = in.reversed();
  // Room for one: a micro-batch (12) can only start when the one before it is done.
  EXPECT_FALSE(Propagation(in, mirror, 5).run(60));
  EXPECT_TRUE(Propagation(in, mirror, 5).run(61));
}

TEST(Propagation, OrdersTwoStepsOfWhichOneIsUrgent) {
  Placement p = on_devices(2);
  const int quick = add(p, "quick", {0}, 1);
  const int slow = add(p, "slow", {0}, 5);
  add(p, "long", {1}, 9, {.after = {quick}});
  const Instance in(p);
  const Instance mirror = in.reversed();
  Propagation common(in, mirror, 1);
  ASSERT_TRUE(common.run(12));  // slow first would take 5 + 1 + 9
  EXPECT_EQ(common.before(quick, slow, 0), 1);
  EXPECT_EQ(common.after(quick, slow, 0), 1);
  EXPECT_EQ(common.head(slow, 0), 1);
  EXPECT_EQ(common.tail(quick, 0), 9);
  EXPECT_FALSE(common.run(10));
}

}  // namespace
}  // namespace ostinato
