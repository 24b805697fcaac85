// SPDX-License-Identifier: Apache-2.0
// Unequal micro-batches against an enumeration of all orders: no false bound, and nearly always the optimum.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "search/checker/checker.h"
#include "search/files/error.h"
#include "search/portfolio/search_options.h"
#include "search/unequal/unequal.h"
#include "tests/search/rounds.h"
#include "tests/search/unequal/unequal_cases.h"

namespace ostinato {
namespace {

/// The least makespan; every step is a block of its own, so nothing of identical jobs is used.
std::optional<Nanoseconds> least(const test::UnequalCase& one) {
  const Placement all = unrolled(one.placement, one.sizes);
  return test::AllOrders(all, 1).least();
}

TEST(UnequalBruteForce, NoBoundIsFalseAndNearlyEveryPlanIsOptimal) {
  test::Dice random(19);
  const int cases = test::rounds(1000);
  int solved = 0, optimal = 0, stuck = 0;
  for (int i = 0; i < cases; ++i) {
    SCOPED_TRACE(i);
    const test::UnequalCase one = test::unequal_case(random, 9);
    const std::optional<Nanoseconds> known = least(one);
    try {
      const Plan plan = search_unequal(one.placement, one.sizes, {.work = 50'000});
      ASSERT_TRUE(known) << "a plan where no order fits";
      for (const std::string& failure : check_plan(plan, one.placement).failures) ADD_FAILURE() << failure;
      EXPECT_LE(plan.lower_bound.makespan, *known);
      EXPECT_GE(plan.makespan, *known);
      ++solved;
      optimal += plan.makespan == *known;
    } catch (const InfeasibleError&) {
      EXPECT_FALSE(known);
    } catch (const UndecidedError&) {
      stuck += known.has_value();
    }
  }
  EXPECT_EQ(stuck, 0) << "an order fits, and none was found";
  EXPECT_GE(solved, cases / 2);
  EXPECT_GE(optimal * 1000, solved * 990) << optimal << " of " << solved;
  RecordProperty("optimal", optimal);
  RecordProperty("solved", solved);
}

/// Bytes that are given back before anything took them may make room for a block that is too large alone.
TEST(UnequalBruteForce, NothingIsInfeasibleWhereBytesAreGivenFirstAndAnOrderFits) {
  test::Dice random(20);
  int too_large = 0;
  for (int i = 0; i < test::rounds(300); ++i) {
    SCOPED_TRACE(i);
    test::UnequalCase one = test::unequal_case(random, 9);
    for (Device& device : one.placement.devices) device.memory = std::min<Bytes>(device.memory, 3);
    for (Block& block : one.placement.blocks) block.memory = -block.memory;
    for (MicroBatch& batch : one.sizes)
      for (Bytes& memory : batch.memory) memory = -memory;
    const bool known = least(one).has_value();
    too_large += known && std::ranges::any_of(one.sizes, [](const MicroBatch& batch) {
                   return std::ranges::max(batch.memory) > 3;
                 });
    try {
      const Plan plan = search_unequal(one.placement, one.sizes, {.work = 5'000});
      EXPECT_TRUE(known) << "a plan where no order fits";
      for (const std::string& failure : check_plan(plan, one.placement).failures) ADD_FAILURE() << failure;
    } catch (const InfeasibleError& error) {
      EXPECT_FALSE(known) << error.what();
    } catch (const UndecidedError&) {
    }
  }
  EXPECT_GT(too_large, 0);
}

}  // namespace
}  // namespace ostinato
