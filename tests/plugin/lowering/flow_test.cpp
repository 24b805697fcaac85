// SPDX-License-Identifier: Apache-2.0
// How far ranks may part: exact answers for programs that are small enough to follow by hand.

#include "plugin/lowering/flow.h"

#include <gtest/gtest.h>

#include "plugin/lowering/lower.h"
#include "tests/support/plans.h"

namespace ostinato {
namespace {

using testing::backward_first;
using testing::graph;

/// The blocks of `placement` are its stages' forwards; `starts[block][micro-batch]`.
Program program_of(const Placement& placement, const std::vector<std::vector<Nanoseconds>>& starts) {
  Plan plan;
  plan.micro_batches = static_cast<int>(starts[0].size());
  for (std::size_t b = 0; b < starts.size(); ++b) {
    for (std::size_t m = 0; m < starts[b].size(); ++m)
      plan.schedule.push_back({static_cast<int>(b), static_cast<int>(m), starts[b][m]});
  }
  return lower(plan, placement);
}

Placement forwards(const std::vector<int>& device_of, const std::vector<std::pair<int, int>>& edges) {
  return graph({.device_of = device_of, .edges = edges, .training = false});
}

TEST(Flow, OneMessageAtATimeIsEnoughForAChain) {
  const Placement p = forwards({0, 1, 2}, {{0, 1}, {1, 2}});
  const Program program = lower(backward_first(p, 8), p);
  EXPECT_EQ(sends_ahead(program, 1, false), 1);
  EXPECT_EQ(sends_ahead(program, 2, false), 2);
  EXPECT_EQ(front_stage(program, 1, false), 0);
}

/// Rank 0 makes all for stage 3, then all for stage 2; rank 1 takes them the other way round: all six are
/// under way when the first is over.
TEST(Flow, MessagesThatOthersOvertakeMayAllBeUnderWay) {
  const Placement p = forwards({0, 0, 1, 1}, {{1, 2}, {0, 3}});
  const Program program = program_of(p, {{0, 10, 20}, {30, 41, 52}, {41, 53, 65}, {77, 90, 103}});
  EXPECT_EQ(sends_ahead(program, 1, false), 8);
  EXPECT_EQ(sends_ahead(program, 6, false), 6);
  EXPECT_EQ(sends_ahead(program, 5, false), 10);
}

/// A fast first stage: its messages come, in the plan, long before they are consumed. A receive that waits at
/// its place lets none of them be held back.
TEST(Flow, ReceivesThatWaitNeedMoreUnderWay) {
  Placement p = forwards({0, 1}, {{0, 1}});
  p.blocks[1].time = 40;
  const Program program = program_of(p, {{0, 10, 20, 30, 40, 50}, {10, 50, 90, 130, 170, 210}});
  EXPECT_EQ(sends_ahead(program, 2, false), 2);
  EXPECT_EQ(sends_ahead(program, 2, true), 4);
}

TEST(Flow, TheFrontIsTheStageThatMayComeFirst) {
  const Placement p = forwards({0, 1, 1}, {{0, 2}, {1, 2}});
  EXPECT_EQ(front_stage(program_of(p, {{0, 10}, {0, 24}, {12, 36}}), 2, false), 0);
  // Rank 1 runs its own source of the next micro-batch before it joins the first; rank 0 is late.
  EXPECT_EQ(front_stage(program_of(p, {{40, 50}, {0, 11}, {50, 62}}), 2, false), 0);
}

/// Stage 0's rank first needs what stage 1 makes of micro-batch 0, and stage 1's what stage 0 makes of
/// micro-batch 1.
TEST(Flow, NoStageMayAlwaysComeFirst) {
  const Placement p = forwards({0, 1, 0, 1}, {{1, 2}, {0, 3}});
  const Program program = program_of(p, {{23, 33}, {0, 59}, {11, 70}, {33, 46}});
  EXPECT_EQ(front_stage(program, 2, false), -1);
  EXPECT_EQ(sends_ahead(program, 2, false), 2);
}

}  // namespace
}  // namespace ostinato
