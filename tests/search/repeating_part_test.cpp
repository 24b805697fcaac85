// SPDX-License-Identifier: Apache-2.0
// The repeating part alone where a block takes no time, or a micro-batch does not give back what it takes.

#include "search/repetend/repeating_part.h"

#include <gtest/gtest.h>

#include "search/files/error.h"
#include "tests/search/checked.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::add;
using test::on_devices;

/// `work`, then a gather of 10 bytes and its release in no time, in less room than that.
Placement gathers_in_no_time(Nanoseconds work) {
  Placement p = on_devices(1, 5);
  const int first = add(p, "work", {0}, work);
  const int gather = add(p, "gather", {0}, 0, {.memory = 10, .after = {first}});
  add(p, "release", {0}, 0, {.memory = -10, .after = {gather}});
  return p;
}

TEST(RepeatingPart, WhatIsTakenAndGivenBackInNoTimeIsNeverHeld) {
  RepetendOptions little;
  little.work = 3000;
  const RepeatingPart part = repeating_part(gathers_in_no_time(3), little);
  EXPECT_EQ(part.repetend.period, 3);
  EXPECT_TRUE(part.repetend.period_proved && part.repetend.memory_proved);
  EXPECT_EQ(part.held, (std::vector<Bytes>{0}));
}

TEST(RepeatingPart, ASearchThatHasItEndsByItself) {
  const Placement p = gathers_in_no_time(3);
  for (const int n : {1, 2, 5}) EXPECT_EQ(test::searched(p, n).makespan, 3 * n);
}

TEST(RepeatingPart, TwoGathersInNoTimeTakeTurns) {
  Placement p = on_devices(1, 10);
  for (const char* name : {"a", "b"}) {
    const int gather = add(p, std::string("gather ") + name, {0}, 0, {.memory = 6});
    const int use = add(p, std::string("use ") + name, {0}, 2, {.after = {gather}});
    add(p, std::string("release ") + name, {0}, 0, {.memory = -6, .after = {use}});
  }
  const RepeatingPart part = repeating_part(p, {});
  EXPECT_EQ(part.repetend.period, 4);
  EXPECT_EQ(part.held, (std::vector<Bytes>{6}));
}

TEST(RepeatingPart, OfNoTimeHasTheLeastPeriodThatThereIs) {
  const RepeatingPart part = repeating_part(gathers_in_no_time(0), {});
  EXPECT_EQ(part.repetend.period, 1);
  EXPECT_EQ(part.repetend.unroll, 1);
  EXPECT_EQ(part.held, (std::vector<Bytes>{0}));
}

TEST(RepeatingPart, NothingRepeatsForEverWhereMemoryPilesUp) {
  Placement p = on_devices(1, 100);
  add(p, "F", {0}, 1, {.memory = 3});
  try {
    repeating_part(p, {});
    FAIL();
  } catch (const InfeasibleError& error) {
    EXPECT_NE(std::string(error.what()).find("keeps 3 B"), std::string::npos) << error.what();
  }
  EXPECT_EQ(test::searched(p, 33).makespan, 33) << "some of them fit";
}

TEST(RepeatingPart, HasNoMemoryOfItsOwnWhereAMicroBatchLeavesSome) {
  for (const Bytes left : {3, -3}) {
    Placement p = on_devices(2);
    add(p, "F", {1}, 2, {.memory = left});
    const RepeatingPart part = repeating_part(p, {});
    EXPECT_EQ(part.repetend.period, 2);
    EXPECT_FALSE(part.steady || part.repetend.memory_proved);
    EXPECT_EQ(part.left_behind, (std::vector<Bytes>{0, left}));
    EXPECT_TRUE(part.held.empty());
  }
}

/// Four forwards of one ns, and on the first device a backward long after: many micro-batches in flight.
Placement in_flight(Bytes each, Bytes capacity) {
  Placement p = on_devices(2, capacity);
  const int forward = add(p, "F", {0}, 1, {.memory = each});
  const int far = add(p, "far", {1}, 1, {.after = {forward}, .bytes = 100});
  add(p, "B", {0}, 1, {.memory = -each, .after = {far}});
  p.link.bytes_per_second = 10'000'000'000;
  return p;
}

TEST(RepeatingPart, OfMoreMemoryThanIsPlannedIsRefused) {
  EXPECT_EQ(repeating_part(in_flight(1, kUnlimited), {}).held[0], 7);
  EXPECT_THROW(repeating_part(in_flight(Bytes{1} << 60, kUnlimited), {}), InputError);
}

TEST(RepeatingPart, KeepsToAMemoryThatOnlyJustHasAFigure) {
  const Bytes each = Bytes{1} << 60;
  const RepeatingPart part = repeating_part(in_flight(each, 3 * each), {});
  EXPECT_EQ(part.held[0], 3 * each);
  EXPECT_EQ(part.repetend.period, repeating_part(in_flight(1, 3), {}).repetend.period);
}

}  // namespace
}  // namespace ostinato
