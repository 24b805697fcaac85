// SPDX-License-Identifier: Apache-2.0
// The smaller parts of the search: dispatching, completion, shifts, the repeating part.

#include <gtest/gtest.h>

#include <algorithm>

#include "search/placement/shapes.h"
#include "search/repetend/completion.h"
#include "search/schedule/dispatch.h"
#include "search/schedule/incumbent.h"
#include "search/schedule/shift.h"
#include "search/schedule/steady.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

Placement v(Bytes capacity = kUnlimited) {
  return shape("v", {.forward = 1, .backward = 3, .capacity = capacity});
}

Incumbent offered(const Instance& in, int micro_batches, const std::vector<int>& sequence) {
  Incumbent best(in, micro_batches, Objective::makespan);
  EXPECT_TRUE(best.offer(sequence, "test"));
  return best;
}

TEST(Dispatch, EveryRuleRunsEveryStepWithinTheMemory) {
  const Placement p = v(4);
  const Instance in(p);
  for (const DispatchRule& rule : dispatch_rules(in)) {
    const std::vector<int> sequence = dispatch(in, 12, rule);
    ASSERT_EQ(sequence.size(), 96U);
    EXPECT_GE(offered(in, 12, sequence).score().makespan, 60);
  }
}

TEST(Dispatch, LimitsWhatIsInFlight) {
  const Placement p = v();
  const Instance in(p);
  const Incumbent best = offered(in, 9, dispatch(in, 9, {Priority::longest, 2}));
  EXPECT_LE(*std::max_element(best.peaks().begin(), best.peaks().end()), 2);
}

TEST(Dispatch, ABlockOnSeveralDevicesDoesNotStarve) {
  const Placement p = shape("nn", {.forward = 1, .backward = 3, .shard_forward = 1, .shard_backward = 1});
  const Instance in(p);
  EXPECT_EQ(dispatch(in, 6, {Priority::oldest, 0}).size(), 6 * p.blocks.size());
}

TEST(Completion, JoinsWarmUpRepetendAndCoolDown) {
  const Placement p = shape("v", {.forward = 1, .backward = 2, .capacity = 3});
  const Instance in(p);
  const Instance mirror = in.reversed();
  const Repetend r = find_repetend(in, Bounds(in), 3, {});
  const std::vector<int> plain = complete(in, mirror, r, {.micro_batches = 30, .width = 0}).sequence;
  const std::vector<int> better = complete(in, mirror, r, {.micro_batches = 30, .width = 16}).sequence;
  const Nanoseconds rigid = offered(in, 30, plain).score().makespan;
  EXPECT_LE(offered(in, 30, better).score().makespan, rigid);
  EXPECT_LE(rigid, 10 * r.period + Bounds(in).makespan(1) + r.period);
  // Too few for a warm-up and a cool-down that do not meet.
  EXPECT_TRUE(complete(in, mirror, r, {.micro_batches = 3, .width = 16}).sequence.empty());
}

TEST(Shift, LaterStartsShortenTheSpan) {
  Placement p = test::on_devices(2);
  const int a = test::add(p, "a", {0}, 1);
  const int b = test::add(p, "b", {1}, 9);
  test::add(p, "c", {0}, 1, {.after = {a, b}});
  const Instance in(p);
  const auto late = as_late_as_possible(in, 1, {{a, 0, 0}, {b, 0, 0}, {2, 0, 9}});
  EXPECT_EQ(late, (std::vector<ScheduledBlock>{{a, 0, 8}, {b, 0, 0}, {2, 0, 9}}));
}

TEST(Shift, TheLeastIntervalKeepsDevicesExclusive) {
  const Placement p = v();
  const Instance in(p);
  const std::vector<Nanoseconds> start = {0, 1, 2, 3, 13, 10, 7, 4};  // F0..F3, then the backwards in reverse
  std::vector<Nanoseconds> by_block(8);
  for (int s = 0; s < 4; ++s) {
    const std::string stage = p.blocks[0].name.substr(0, 1) + std::to_string(s);
    by_block[p.find_block(stage + ".F")] = start[s];
    by_block[p.find_block(stage + ".B")] = start[4 + s];
  }
  EXPECT_EQ(least_interval(in, by_block, 1), 4);
  // 5, 6 and 7 put a backward of device 0 or 2 onto a later forward.
  EXPECT_EQ(least_interval(in, by_block, 5), 8);
}

TEST(SteadyState, IsTheLongestPartThatRepeats) {
  Placement p = test::on_devices(1);
  test::add(p, "a", {0}, 2);
  const Instance in(p);
  std::vector<ScheduledBlock> schedule;
  for (const auto& [m, start] : {std::pair{0, 0}, {1, 5}, {2, 7}, {3, 9}, {4, 11}, {5, 20}}) {
    schedule.push_back({0, m, start});
  }
  const SteadyState steady = find_steady_state(in, 6, schedule);
  EXPECT_EQ(steady.period, 2);
  EXPECT_EQ(steady.unroll, 1);
  EXPECT_EQ(steady.first, 1);
  EXPECT_EQ(steady.count, 4);
}

TEST(SteadyState, PhasesThatFollowEachOtherRepeatNothing) {
  // All of a, then all of b: both advance by 1, and nothing overlaps.
  Placement p = test::on_devices(1);
  const int a = test::add(p, "a", {0}, 1);
  test::add(p, "b", {0}, 1, {.after = {a}});
  const Instance in(p);
  const std::vector<ScheduledBlock> schedule = {{0, 0, 0}, {0, 1, 1}, {0, 2, 2},
                                                {1, 0, 3}, {1, 1, 4}, {1, 2, 5}};
  EXPECT_EQ(find_steady_state(in, 3, schedule).count, 0);
}

TEST(Instance, TheMirrorTurnsHeadsIntoTails) {
  const Placement p = v();
  const Instance in(p);
  const Instance mirror = in.reversed();
  for (int b = 0; b < in.blocks(); ++b) {
    EXPECT_EQ(in.head(b), mirror.tail(b));
    EXPECT_EQ(in.memory(b), -mirror.memory(b));
  }
}

}  // namespace
}  // namespace ostinato
