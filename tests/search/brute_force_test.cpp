// SPDX-License-Identifier: Apache-2.0
// The search against an enumeration of all orders, on placements small enough for it.

#include <gtest/gtest.h>

#include <optional>

#include "search/files/error.h"
#include "search/search.h"
#include "tests/search/all_orders.h"
#include "tests/search/checked.h"

namespace ostinato {
namespace {

using test::add_memory;
using test::AllOrders;
using test::any_small;
using test::most_blocks;

void compare(const Placement& p, int micro_batches) {
  const std::optional<Nanoseconds> least = AllOrders(p, micro_batches).least();
  try {
    const Plan plan = test::searched(p, micro_batches);
    ASSERT_TRUE(least) << "a plan where no order fits";
    EXPECT_EQ(plan.makespan, *least);
    EXPECT_LE(plan.lower_bound.makespan, *least);
  } catch (const InfeasibleError& e) {
    EXPECT_FALSE(least) << e.what();
  }
}

TEST(BruteForce, EveryTinyPlacementIsSolvedToTheOptimum) {
  test::Dice random(7);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const int micro_batches = 1 + random.below(3);
    compare(any_small(random, most_blocks[micro_batches] - random.below(2)), micro_batches);
  }
}

TEST(BruteForce, EveryTinyPlacementWithMemoryIsSolvedToTheOptimum) {
  test::Dice random(11);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const int micro_batches = 1 + random.below(3);
    Placement p = any_small(random, most_blocks[micro_batches] - random.below(2));
    add_memory(random, p);
    compare(p, micro_batches);
  }
}

}  // namespace
}  // namespace ostinato
