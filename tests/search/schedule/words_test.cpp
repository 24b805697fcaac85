// SPDX-License-Identifier: Apache-2.0
// Words keep what they promise through moves at random: starts, memory, one order that all devices agree on.

#include "search/schedule/words.h"

#include <gtest/gtest.h>

#include "search/bounds/feasible.h"
#include "search/placement/shapes.h"
#include "search/schedule/local_search.h"
#include "search/schedule/shift.h"
#include "tests/search/checked.h"
#include "tests/search/random_plan.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::add;
using test::on_devices;

std::vector<int> one_by_one(const Instance& in, int micro_batches) {
  std::vector<int> sequence;
  for (int i = 0; i < micro_batches; ++i)
    sequence.insert(sequence.end(), in.topological().begin(), in.topological().end());
  return sequence;
}

/// The plan of a sequence, for the checker.
Plan plan_of(const Placement& p, const Instance& in, int micro_batches, const std::vector<int>& sequence) {
  Plan plan;
  plan.placement_name = p.name;
  plan.micro_batches = micro_batches;
  plan.schedule = as_early_as_possible(in, micro_batches, sequence);
  test::complete_figures(plan, p);
  return plan;
}

/// Devices that hold a micro-batch at a time and 0 to 4 bytes more.
Placement random_limited(test::Random& random, int micro_batches) {
  Placement p = test::random_placement(random);
  const Instance in(p);
  test::limit_memory(p, plan_of(p, in, micro_batches, one_by_one(in, micro_batches)), random.between(0, 4));
  return p;
}

/// Two chains of one step a device, in opposite directions: A0 on device 0 then A1 on device 1, B1 then B0.
Placement two_chains() {
  Placement p = on_devices(2);
  const int a0 = add(p, "A0", {0}, 2);
  const int b1 = add(p, "B1", {1}, 3);
  add(p, "A1", {1}, 4, {.after = {a0}});
  add(p, "B0", {0}, 5, {.after = {b1}});
  return p;
}

TEST(Words, CriticalRunsAreWhatHoldsTheMakespan) {
  const Placement p = two_chains();
  const Instance in(p);
  // Device 0: A0 (0-2), B0 (9-14); device 1: A1 (2-6), B1 (6-9).
  const Words words(in, 1, {0, 2, 1, 3});
  EXPECT_EQ(words.value(), 14);
  const auto runs = words.critical_runs(0);
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].device, 1);
  EXPECT_EQ(runs[0].steps, (std::vector<int>{2, 1}));
}

TEST(Words, AMoveOnTheCriticalPathIsEstimatedAndMade) {
  const Placement p = two_chains();
  const Instance in(p);
  Words words(in, 1, {0, 2, 1, 3});
  const Words::Move move{1, 2, 1, true};  // A1 behind B1: B0 runs 3-8, A1 3-7
  ASSERT_TRUE(words.fits(move));
  EXPECT_EQ(words.estimate(move), 8);
  ASSERT_TRUE(words.apply(move));
  EXPECT_EQ(words.value(), 8);
}

TEST(Words, NothingPassesItsInputOrItsOwnBlock) {
  Placement p = on_devices(1);
  const int a = add(p, "A", {0}, 1);
  add(p, "B", {0}, 1, {.after = {a}});
  const Instance in(p);
  const Words words(in, 2, {0, 1, 0, 1});
  EXPECT_FALSE(words.fits({0, 0, 1, true}));   // A of 0 behind B of 0
  EXPECT_FALSE(words.fits({0, 0, 2, false}));  // A of 1 before A of 0
  EXPECT_TRUE(words.fits({0, 1, 2, true}));    // B of 0 behind A of 1
}

TEST(Words, NothingPassesWhatFreesItsMemory) {
  Placement p = on_devices(1, 1);
  const int take = add(p, "take", {0}, 1, {.memory = 1});
  add(p, "give", {0}, 1, {.memory = -1, .after = {take}});
  const Instance in(p);
  const Words words(in, 2, {0, 1, 0, 1});
  EXPECT_FALSE(words.fits({0, 1, 2, true}));
}

TEST(Words, MovesAtRandomLeaveASchedule) {
  test::Random random(11);
  int made = 0;
  int refused = 0;
  for (int k = 0; k < 300; ++k) {
    SCOPED_TRACE(k);
    const int n = static_cast<int>(random.between(2, 6));
    const Placement p = random_limited(random, n);
    const Instance in(p);
    if (memory_in_no_time(in)) continue;
    Words words(in, n, one_by_one(in, n));
    for (int i = 0; i < 20; ++i) {
      const auto runs = words.critical_runs(random.next());
      if (runs.empty()) break;
      const Words::Run& run = runs[random.next() % runs.size()];
      const auto last = static_cast<std::int64_t>(run.steps.size()) - 1;
      const std::size_t first = random.between(0, last - 1);
      const auto second =
          static_cast<std::size_t>(random.between(static_cast<std::int64_t>(first) + 1, last));
      const Words::Move move{run.device, run.steps[first], run.steps[second], random.chance(50)};
      if (!words.fits(move)) continue;
      const std::vector<int> before = words.sequence();
      const bool done = words.apply(move);
      ++(done ? made : refused);
      if (!done) {
        EXPECT_EQ(words.sequence(), before);
      }
      const Plan plan = plan_of(p, in, n, words.sequence());
      ASSERT_EQ(plan.makespan, words.value());
      test::expect_holds(plan, p);
    }
  }
  EXPECT_GT(made, 500);
  EXPECT_GT(refused, 0);
}

TEST(LocalSearch, FromOneMicroBatchAfterAnotherToTheProvedOptimum) {
  test::Random random(3);
  int proved = 0;
  int reached = 0;
  for (int k = 0; k < 60; ++k) {
    SCOPED_TRACE(k);
    const int n = static_cast<int>(random.between(2, 6));
    const Placement p = random_limited(random, n);
    const Instance in(p);
    if (memory_in_no_time(in)) continue;
    const LocalSearchResult found = local_search(in, n, one_by_one(in, n), {.work = 200'000, .seed = 1});
    const Plan plan = plan_of(p, in, n, found.sequence);
    test::expect_holds(plan, p);
    EXPECT_EQ(plan.makespan, found.value);
    const Plan best = test::searched(p, n);
    if (!best.optimal.makespan) continue;
    ++proved;
    EXPECT_GE(found.value, best.makespan);
    reached += found.value == best.makespan;
  }
  EXPECT_GT(proved, 30);
  EXPECT_GE(reached, proved * 9 / 10) << proved;
}

TEST(LocalSearch, TheSameSeedGivesTheSameScheduleAndStopsWhenToldTo) {
  const Placement p = shape("v", {.devices = 4, .forward = 10, .backward = 21, .capacity = 3});
  const Instance in(p);
  const std::vector<int> start = one_by_one(in, 8);
  const LocalSearchResult first = local_search(in, 8, start, {.seed = 5});
  const LocalSearchResult again = local_search(in, 8, start, {.seed = 5});
  EXPECT_EQ(first.sequence, again.sequence);
  EXPECT_EQ(first.work, again.work);
  EXPECT_LT(first.value, plan_of(p, in, 8, start).makespan);
  const LocalSearchResult stopped = local_search(in, 8, start, {.stop = [] { return true; }});
  EXPECT_LT(stopped.work, first.work / 100);
}

}  // namespace
}  // namespace ostinato
