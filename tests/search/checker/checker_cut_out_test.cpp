// SPDX-License-Identifier: Apache-2.0
#include "search/checker/cut_out.h"

#include <gtest/gtest.h>

#include "search/checker/bounds.h"
#include "search/placement/shapes.h"
#include "tests/search/all_orders.h"
#include "tests/search/beside_optimum.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::add;
using test::Dice;
using test::on_devices;

constexpr checker::Wide kAll = checker::kUnbounded;

TEST(CheckerCutOutTest, WhatCannotRunBesideTheCutKeepsItsTime) {
  Placement p = on_devices(3);
  p.link.latency = 1;
  const int all = add(p, "all", {0, 1}, 2);
  const int own = add(p, "own", {1}, 3, {.after = {all}});
  const int far = add(p, "far", {2}, 5, {.after = {own}});
  const checker::Graph graph(p);
  const std::vector<std::vector<int>> sets = checker::sets_to_cut_out(graph);
  ASSERT_EQ(sets, (std::vector<std::vector<int>>{{all}}));
  EXPECT_EQ(checker::times_that_stay(graph, sets[0]), (std::vector<Nanoseconds>{0, 1}));
  const checker::Rest rest = checker::without(graph, sets[0], 1);
  EXPECT_EQ(static_cast<int>(rest.cut_out), 1);
  EXPECT_EQ(rest.placement.blocks[all].time, 1);
  EXPECT_EQ(rest.placement.blocks[own].time, 3);
  EXPECT_EQ(rest.placement.blocks[far].time, 0);
  EXPECT_EQ(rest.longest, (std::vector<checker::Wide>{1, 1, 0}));
}

/// There and back over two devices in little memory, behind a block on both.
Placement behind_a_shared_block(Dice& random) {
  Placement p = on_devices(2, 1 + random.below(2));
  p.link.latency = random.below(4);
  add(p, "all", {0, 1}, 1 + random.below(4));
  add(p, "F0", {0}, 1 + random.below(4), {.memory = 1, .after = {0}});
  add(p, "F1", {1}, 1 + random.below(4), {.memory = 1, .after = {1}});
  add(p, "B1", {1}, 1 + random.below(4), {.memory = -1, .after = {2}});
  add(p, "B0", {0}, 1 + random.below(4), {.memory = -1, .after = {3}});
  return p;
}

TEST(CheckerCutOutTest, NoOrderEndsSooner) {
  Dice random(11);
  test::Beside found = test::beside_optimum<test::AllOrders>(
      150,
      [&] {
        return test::Drawn{behind_a_shared_block(random), 3};
      },
      [](const checker::Bounds& bounds, int n) { return bounds.makespan(n, kAll); });
  EXPECT_EQ(found.solved, 150);
  EXPECT_GE(found.tight, 40);
  EXPECT_GE(found.by["M6"], 20);
}

TEST(CheckerCutOutTest, NoOrderOfAnyGraphEndsSooner) {
  Dice random(12);
  const auto draw = [&] {
    const int n = 1 + random.below(3);
    Placement p = test::any_small(random, test::most_blocks[n]);
    test::add_memory(random, p);
    return test::Drawn{p, n};
  };
  test::beside_optimum<test::AllOrders>(
      400, draw, [](const checker::Bounds& bounds, int n) { return bounds.makespan_by_windows(n); });
}

}  // namespace
}  // namespace ostinato
