// SPDX-License-Identifier: Apache-2.0
// The search against an enumeration of all orders, on placements small enough for it.

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "search/files/error.h"
#include "search/placement/lanes.h"
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

/// One or two devices with a lane each, and blocks of which each waits for some before it; some hold both.
/// What computes takes and gives memory.
Placement with_lanes(test::Dice& random, int blocks) {
  Placement p = test::on_devices(1 + random.below(2));
  const int devices = static_cast<int>(p.devices.size());
  if (random.chance(50)) p.link = {.latency = random.below(3)};
  for (int d = 0; d < devices; ++d) add_lane(p, d, "network");
  link_lanes(p);
  for (int b = 0; b < blocks; ++b) {
    std::vector<int> after;
    for (int a = 0; a < b; ++a)
      if (random.chance(a == b - 1 ? 60 : 20)) after.push_back(a);
    const int lane = random.below(2 * devices);
    std::vector<int> holds = {lane};
    if (lane >= devices && random.chance(20)) holds = {p.devices[lane].lane_of, lane};
    test::add(p, "b" + std::to_string(b), holds, 1 + random.below(4), {.after = after});
  }
  if (random.chance(50)) return p;
  add_memory(random, p);
  for (Block& block : p.blocks)
    if (block.devices[0] >= devices) block.memory = 0;
  for (int lane = devices; lane < 2 * devices; ++lane) p.devices[lane].memory = kUnlimited;
  return p;
}

TEST(BruteForce, EveryTinyPlacementWithLanesIsSolvedToTheOptimum) {
  test::Dice random(13);
  for (int i = 0; i < 2000; ++i) {
    SCOPED_TRACE(i);
    const int micro_batches = 1 + random.below(3);
    compare(with_lanes(random, most_blocks[micro_batches] - random.below(2)), micro_batches);
  }
}

}  // namespace
}  // namespace ostinato
