// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/bounds.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "search/bounds/windows.h"
#include "search/checker/bounds.h"
#include "search/checker/windows.h"
#include "search/placement/shapes.h"
#include "search/search.h"
#include "tests/search/all_orders.h"
#include "tests/search/checked.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::add;
using test::on_devices;

TEST(Bounds, WorkHeadAndTailOfADevice) {
  Placement p = on_devices(2);
  p.link.latency = 2;
  const int f0 = add(p, "F0", {0}, 3);
  const int f1 = add(p, "F1", {1}, 10, {.after = {f0}});
  add(p, "B0", {0}, 4, {.after = {f1}});
  const Instance in(p);
  const Bounds bounds(in);
  EXPECT_EQ(bounds.makespan(1), 3 + 2 + 10 + 2 + 4);
  EXPECT_EQ(bounds.makespan(5), 3 + 2 + 50 + 2 + 4);
  EXPECT_EQ(bounds.period(1), 10);
  EXPECT_EQ(bounds.period(3), 30);
  EXPECT_EQ(bounds.latency(), 21);
  // Device 0 starts before and ends after all work of device 1.
  EXPECT_EQ(bounds.span(5), 61);
}

TEST(Bounds, BlocksOnSeveralDevicesKeepTheirDevicesFromThePathToTheFirstOwnBlock) {
  const Placement p = shape("m", {.forward = 1, .backward = 3, .shard_forward = 1, .shard_backward = 1});
  const Instance in(p);
  EXPECT_EQ(Bounds(in).makespan(8), 48 + 3 + 9);
}

TEST(Bounds, MemoryTimesItsRoundTrip) {
  Placement p = on_devices(2, 2);
  p.devices[1].memory = kUnlimited;
  const int f0 = add(p, "F0", {0}, 1, {.memory = 1, .workspace = 1});
  const int f1 = add(p, "F1", {1}, 6, {.after = {f0}});
  add(p, "B0", {0}, 1, {.memory = -1, .after = {f1}});
  const Instance in(p);
  const Bounds bounds(in);
  EXPECT_EQ(static_cast<Nanoseconds>(bounds.area(0)->bytes_time), 8 + 1);
  EXPECT_FALSE(bounds.area(1));
  EXPECT_EQ(bounds.period(3), 24);  // 14 by memory, 18 by work; while F0 runs, no room for another one
  p.devices[0].memory = 1 + 1;
  p.blocks[1].devices = {0};  // all on one device: held for 8, room for 2
  const Instance one(p);
  EXPECT_EQ(Bounds(one).makespan(4), 32);
}

/// A micro-batch holds a byte of device 0 from F0 to B0, 20 later, through devices with 6 of work each. While
/// F0 runs, it needs two bytes more.
Placement with_workspace(Bytes room) {
  Placement p = on_devices(4);
  p.devices[0].memory = room;
  int last = add(p, "F0", {0}, 1, {.memory = 1, .workspace = 2});
  for (const int d : {1, 2, 3}) last = add(p, fmt::format("F{}", d), {d}, 6, {.after = {last}});
  add(p, "B0", {0}, 1, {.memory = -1, .after = {last}});
  return p;
}

TEST(Bounds, WorkspaceLeavesRoomForFewOthers) {
  struct Row {
    Bytes room;
    Nanoseconds four_repeat, five_take;
  };
  for (const Row& row : {Row{3, 4 * 20, 100}, Row{4, 2 * 20, 60}, Row{5, 4 * 6, 46}, Row{6, 4 * 6, 44}}) {
    const Placement p = with_workspace(row.room);
    const Instance in(p);
    EXPECT_EQ(Bounds(in).period(4), row.four_repeat) << row.room;
    EXPECT_EQ(static_cast<Nanoseconds>(checker::Bounds(p).period(4).value), row.four_repeat) << row.room;
    const Nanoseconds bound = Bounds(in).makespan(5);
    EXPECT_EQ(bound, row.room == 5 ? 44 : row.five_take) << row.room;
    EXPECT_EQ(search(p, {.micro_batches = 5}).makespan, row.five_take) << row.room;
  }
}

TEST(Bounds, MemoryThatTheFirstHalfOfABackwardTakesIsThatOfItsSecond) {
  const Instance in(test::split_and_recomputed());
  ASSERT_TRUE(Bounds(in).area(0));
  EXPECT_EQ(static_cast<Nanoseconds>(Bounds(in).area(0)->bytes_time), 2 * 2 + 1 * 5 + 4 * 3);
}

TEST(Bounds, WhatMemoryCannotHoldIsLongerThanAnyPlannedStep) {
  for (const int forwards : {31, 40}) {  // the sum, and what is divided alone, leave int64
    Placement p = on_devices(2, 1);
    p.devices[1].memory = kUnlimited;
    constexpr Nanoseconds years = Nanoseconds{1} << 58;
    const int first = add(p, "P", {1}, years);
    std::vector<int> all;
    for (int i = 0; i < forwards; ++i)
      all.push_back(add(p, fmt::format("F{}", i), {0}, 0, {.memory = 1, .after = {first}}));
    const int middle = add(p, "M", {1}, years, {.after = all});
    for (int i = 0; i < forwards; ++i)
      add(p, fmt::format("B{}", i), {0}, 0, {.memory = -1, .after = {middle}});
    const Instance in(p);
    EXPECT_GT(Bounds(in).makespan(1), Nanoseconds{1} << 60) << forwards;
  }
}

TEST(Bounds, MemoryThatNothingTookIsLeftOut) {
  Placement p = on_devices(1, 3);
  add(p, "give", {0}, 1, {.memory = -1});
  add(p, "take", {0}, 1, {.memory = 1});
  const Instance in(p);
  EXPECT_FALSE(Bounds(in).area(0));
  EXPECT_EQ(Bounds(in).makespan(2), 4);
}

// b5 and b3 may come first; only with b3, and b4 after it, does W4 find that b4 and b5 do not fit together.
TEST(Bounds, TheCheckerProvesWhatDependsOnTheOrderOfEqualBlocks) {
  Placement p = on_devices(3);
  p.devices[1].memory = 3;
  const int b3 = add(p, "b3", {2}, 1);
  const int b4 = add(p, "b4", {1}, 1, {.workspace = 3, .after = {b3}});
  const int b5 = add(p, "b5", {1}, 1, {.memory = 1});
  add(p, "b6", {1}, 1, {.memory = -1, .after = {b4, b5}});
  EXPECT_EQ(test::searched(p, 2, Objective::latency).lower_bound.objective, 4);
}

TEST(Windows, AreThoseOfTheChecker) {
  test::Dice random(11);
  for (int k = 0; k < 1000; ++k) {
    Placement p = test::any_small(random, 4 + random.below(6));
    test::add_memory(random, p);
    for (Block& block : p.blocks) {
      if (random.chance(15)) block.workspace = random.below(4);
      if (random.chance(15) && block.memory == 0) block.time = 0;
    }
    const int n = 1 + random.below(6);
    const Instance in(p), mirror = in.reversed();
    const checker::Graph graph(p);
    for (int origin = kNoDevice; origin < in.devices(); ++origin) {
      const Windows ours(in, mirror, match_all(in), n, origin);
      const checker::Windows theirs(graph, n, origin);
      ASSERT_TRUE(ours.known() && theirs.known());
      for (int b = 0; b < in.blocks(); ++b) {
        for (int i = 0; i < n; ++i) {
          ASSERT_EQ(ours.earliest(b, i), theirs.earliest(b, i)) << k << " " << origin << " " << b << " " << i;
          ASSERT_EQ(ours.after(b, i), theirs.after(b, i)) << k << " " << origin << " " << b << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ostinato
