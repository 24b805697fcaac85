// SPDX-License-Identifier: Apache-2.0
#include "search/checker/idle.h"

#include <gtest/gtest.h>

#include "search/checker/bounds.h"
#include "search/checker/checker.h"
#include "search/placement/shapes.h"
#include "search/search.h"
#include "tests/search/all_orders.h"
#include "tests/search/all_spans.h"
#include "tests/search/beside_optimum.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::add;
using test::Dice;
using test::on_devices;

constexpr checker::Wide kAll = checker::kUnbounded;

Placement two_ways(int devices, Bytes room) {
  return shape("x", {.devices = devices, .forward = 1, .backward = 3, .memory = 1, .capacity = room});
}

TEST(CheckerIdleTest, ChimerasBubble) {
  // What section E proves of 4 devices and 3 micro-batches by trying all.
  const checker::Bound small = checker::Bounds(two_ways(4, 4)).makespan(3, kAll);
  EXPECT_EQ(static_cast<int>(small.value), 30);
  // A device in the middle holds p forwards of both directions together, and waits p - 2 for the first
  // backward.
  for (const int p : {8, 16}) {
    const checker::Bound bound = checker::Bounds(two_ways(p, p)).makespan(128, kAll);
    EXPECT_EQ(static_cast<int>(bound.value), 128 * 8 + 2 * p - 4 + p - 2);
    EXPECT_EQ(bound.why.substr(0, 3), "M5:");
    const checker::Bound more_room = checker::Bounds(two_ways(p, p + p / 2)).makespan(128, kAll);
    EXPECT_EQ(static_cast<int>(more_room.value), 128 * 8 + 2 * p - 4 + p / 2 - 2);
  }
}

TEST(CheckerIdleTest, PlansMeetIt) {
  const Placement p = two_ways(8, 8);
  Plan plan = search(p, {.micro_batches = 128, .time_limit_seconds = 0});
  EXPECT_TRUE(plan.optimal.makespan);
  EXPECT_EQ(check_plan(plan, p).failures, std::vector<std::string>{});
  plan.lower_bound.makespan = plan.lower_bound.objective = plan.makespan + 1;
  EXPECT_FALSE(check_plan(plan, p).ok());
}

/// Two chains that leave device 0 and come back, or one of them twice, in little memory.
Placement round_trips(Dice& random) {
  Placement p = on_devices(3);
  p.devices[0].memory = 2 + random.below(4);
  for (const int chain : {0, 1}) {
    const Bytes bytes = 1 + random.below(2);
    const int away = add(p, fmt::format("F{}", chain), {0}, 1 + random.below(3), {.memory = bytes});
    const int there =
        add(p, fmt::format("X{}", chain), {1 + random.below(2)}, 1 + random.below(6), {.after = {away}});
    add(p, fmt::format("B{}", chain), {0}, 1 + random.below(3),
        {.memory = -bytes, .workspace = random.below(2), .after = {there}});
  }
  if (random.chance(30)) p.blocks[3].after.push_back({2, 0});
  return p;
}

TEST(CheckerIdleTest, NoOrderEndsSooner) {
  Dice random(5);
  test::Beside found = test::beside_optimum<test::AllOrders>(
      600,
      [&] {
        return test::Drawn{round_trips(random), 2};
      },
      [](const checker::Bounds& bounds, int n) { return bounds.makespan(n, kAll); });
  EXPECT_GE(found.tight, 250);
  EXPECT_GE(found.by["M5"], 20);
}

TEST(CheckerIdleTest, NoOrderHasASmallerSpan) {
  Dice random(6);
  test::Beside found = test::beside_optimum<test::AllSpans>(
      150,
      [&] {
        return test::Drawn{round_trips(random), 2};
      },
      [](const checker::Bounds& bounds, int n) { return bounds.span(n, kAll); });
  EXPECT_GE(found.by["S5"], 5);
}

}  // namespace
}  // namespace ostinato
