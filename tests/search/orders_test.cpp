// SPDX-License-Identifier: Apache-2.0
#include "search/plan/orders.h"

#include <gtest/gtest.h>

#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::add;
using test::on_devices;

/// Two devices in a chain: F0 -> F1 -> B1 -> B0, forward 1, backward 2, a transfer of 3 between devices.
Placement two_stage_chain() {
  Placement p = on_devices(2);
  p.link.latency = 3;
  add(p, "F0", {0}, 1, {.memory = 1, .workspace = 5});
  add(p, "F1", {1}, 1, {.memory = 1, .after = {0}});
  add(p, "B1", {1}, 2, {.memory = -1, .after = {1}});
  add(p, "B0", {0}, 2, {.memory = -1, .after = {2}});
  return p;
}

TEST(Orders, EarliestStartsAreLongestPaths) {
  const Placement p = two_stage_chain();
  const Orders orders = {{{0, 0}, {0, 1}, {3, 0}, {3, 1}}, {{1, 0}, {2, 0}, {1, 1}, {2, 1}}};
  const auto schedule = earliest_starts(p, 2, orders);
  ASSERT_TRUE(schedule);
  // F0.0 0-1, F1.0 4-5, B1.0 5-7, F1.1 7-8, B1.1 8-10, B0.0 10-12, B0.1 13-15.
  const std::vector<ScheduledBlock> expected = {{0, 0, 0}, {0, 1, 1}, {1, 0, 4},  {2, 0, 5},
                                                {1, 1, 7}, {2, 1, 8}, {3, 0, 10}, {3, 1, 13}};
  EXPECT_EQ(*schedule, expected);
  EXPECT_EQ(makespan_of(p, *schedule), 15);
  EXPECT_EQ(span_of(p, *schedule), 15);
  EXPECT_EQ(latency_of(p, *schedule), 14);
  EXPECT_EQ(orders_of(p, *schedule), orders);
}

TEST(Orders, ContradictoryOrdersHaveNoSchedule) {
  const Placement p = two_stage_chain();
  EXPECT_FALSE(earliest_starts(p, 1, {{{3, 0}, {0, 0}}, {{1, 0}, {2, 0}}}));
}

TEST(Orders, ABlockOnSeveralDevicesWaitsForAllOfThem) {
  Placement p = on_devices(2);
  add(p, "A", {0}, 5);
  add(p, "S", {0, 1}, 1);
  add(p, "C", {1}, 2);
  const auto schedule = earliest_starts(p, 1, {{{0, 0}, {1, 0}}, {{1, 0}, {2, 0}}});
  ASSERT_TRUE(schedule);
  EXPECT_EQ(*schedule, (std::vector<ScheduledBlock>{{0, 0, 0}, {1, 0, 5}, {2, 0, 6}}));
  EXPECT_FALSE(earliest_starts(p, 2, {{{0, 0}, {1, 0}, {1, 1}, {0, 1}}, {{1, 1}, {1, 0}, {2, 0}, {2, 1}}}));
}

TEST(Orders, PeakMemoryCountsStaticWorkspaceAndGivesBackBeforeItTakes) {
  Placement p = two_stage_chain();
  p.devices[1].static_memory = 100;
  const auto schedule =
      earliest_starts(p, 2, {{{0, 0}, {0, 1}, {3, 0}, {3, 1}}, {{1, 0}, {2, 0}, {1, 1}, {2, 1}}});
  ASSERT_TRUE(schedule);
  // Device 0 holds one micro-batch while the second forward runs with its workspace of 5; device 1 gives back
  // at 7 what it takes again at 7.
  EXPECT_EQ(peak_memory(p, *schedule), (std::vector<Bytes>{7, 101}));
}

TEST(Orders, AStepOfNoTimeStandsBeforeTheOneThatStartsWithIt) {
  Placement p = on_devices(1);
  add(p, "long", {0}, 4);
  add(p, "none", {0}, 0);
  const std::vector<ScheduledBlock> schedule = {{0, 0, 0}, {1, 0, 0}};
  EXPECT_EQ(orders_of(p, schedule), (Orders{{{1, 0}, {0, 0}}}));
}

TEST(Orders, EqualStartsAreListedByDeviceThenName) {
  Placement p = on_devices(2);
  add(p, "z", {0}, 0);
  add(p, "b", {1}, 0);
  add(p, "a", {1}, 0);
  std::vector<ScheduledBlock> schedule = {{1, 0, 0}, {2, 1, 0}, {2, 0, 0}, {0, 0, 0}};
  sort_schedule(p, schedule);
  EXPECT_EQ(schedule, (std::vector<ScheduledBlock>{{0, 0, 0}, {2, 0, 0}, {2, 1, 0}, {1, 0, 0}}));
}

}  // namespace
}  // namespace ostinato
