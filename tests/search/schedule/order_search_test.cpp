// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/order_search.h"

#include <gtest/gtest.h>

#include "search/plan/orders.h"
#include "search/schedule/beam.h"
#include "search/schedule/local_search.h"
#include "search/schedule/longest_paths.h"
#include "search/schedule/shift.h"
#include "search/schedule/words.h"
#include "tests/search/checked.h"
#include "tests/search/random_plan.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

TEST(LongestPaths, RefuseACircleAndTakeBackWhatWasAdded) {
  LongestPaths paths(3);
  ASSERT_TRUE(paths.add(0, 1, 4));
  const std::size_t mark = paths.mark();
  ASSERT_TRUE(paths.add(1, 2, 5));
  EXPECT_EQ(paths.get(0, 2), 9);
  EXPECT_FALSE(paths.add(2, 0, -8)) << "2 starts 9 after 0, not 8";
  EXPECT_TRUE(paths.add(2, 0, -9));
  paths.undo(mark);
  EXPECT_EQ(paths.get(0, 2), kNoPath);
  EXPECT_EQ(paths.get(0, 1), 4);
  EXPECT_EQ(paths.get(2, 2), 0);
}

std::vector<int> one_by_one(const Instance& in, int micro_batches) {
  std::vector<int> sequence;
  for (int i = 0; i < micro_batches; ++i)
    sequence.insert(sequence.end(), in.topological().begin(), in.topological().end());
  return sequence;
}

/// What the checker says of the sequence's schedule.
void check(const Placement& p, const Instance& in, int micro_batches, const std::vector<int>& sequence,
           Objective objective) {
  Plan plan;
  plan.placement_name = p.name;
  plan.micro_batches = micro_batches;
  plan.schedule = Words(in, micro_batches, sequence, objective).schedule();
  sort_schedule(p, plan.schedule);
  test::complete_figures(plan, p);
  EXPECT_EQ(check_plan(plan, p).failures, std::vector<std::string>{});
}

/// No schedule is shorter: each that is found is the limit of the next search. 0: the work was used up.
Nanoseconds least(const Placement& p, const Instance& in, int micro_batches, Objective objective) {
  OrderSearchOptions options{.objective = objective, .below = beyond_all_schedules(in, micro_batches)};
  for (;;) {
    const OrderSearchResult found = search_orders(in, micro_batches, options);
    if (found.sequence.empty()) return found.complete ? options.below : 0;
    const Nanoseconds value = Words(in, micro_batches, found.sequence, objective).value();
    EXPECT_LT(value, options.below);
    check(p, in, micro_batches, found.sequence, objective);
    options.below = value;
  }
}

/// Devices that hold a micro-batch at a time and 0 to 4 bytes more.
Placement random_limited(test::Random& random, int micro_batches) {
  Placement p = test::random_placement(random);
  const Instance in(p);
  Plan plan;
  plan.placement_name = p.name;
  plan.micro_batches = micro_batches;
  plan.schedule = as_early_as_possible(in, micro_batches, one_by_one(in, micro_batches));
  test::complete_figures(plan, p);
  test::limit_memory(p, plan, random.between(0, 4));
  return p;
}

TEST(OrderSearch, AgreesWithTheExactBeamAndIsNeverBehindTheLocalSearch) {
  test::Random random(11);
  int compared = 0;
  for (int round = 0; round < 300; ++round) {
    const int n = random.between(1, 3);
    const Placement p = random_limited(random, n);
    const Instance in(p);
    if (!orders_can_be_searched(in, n)) continue;
    BeamOptions exact;
    exact.width = 2000;
    exact.exact = true;
    const BeamResult beam = beam_search(in, whole_horizon(in, n), exact);
    const Nanoseconds makespan = least(p, in, n, Objective::makespan);
    if (beam.truncated || makespan == 0) continue;
    EXPECT_EQ(makespan, beam.value) << round;
    ++compared;
    for (const Objective objective : {Objective::span, Objective::latency}) {
      const LocalSearchOptions options{.objective = objective, .work = 50'000};
      const Nanoseconds value = least(p, in, n, objective);
      EXPECT_LE(value, local_search(in, n, one_by_one(in, n), options).value) << round;
    }
  }
  EXPECT_GE(compared, 50);
}

TEST(OrderSearch, NearASequenceFindsWhatIsBetter) {
  test::Random random(3);
  int better = 0;
  for (int round = 0; round < 150; ++round) {
    const Placement p = random_limited(random, 3);
    const Instance in(p);
    if (!orders_can_be_searched(in, 3)) continue;
    const std::vector<int> sequence = one_by_one(in, 3);
    OrderSearchOptions options{.objective = Objective::span, .work = 1'000'000};
    options.below = Words(in, 3, sequence, Objective::span).value();
    const OrderSearchResult found = search_near(in, 3, options, sequence, 7);
    EXPECT_FALSE(found.complete);
    EXPECT_EQ(found.sequence, search_near(in, 3, options, sequence, 7).sequence);
    if (found.sequence.empty()) continue;
    EXPECT_LT(Words(in, 3, found.sequence, Objective::span).value(), options.below);
    check(p, in, 3, found.sequence, Objective::span);
    ++better;
  }
  EXPECT_GE(better, 5);
}

TEST(OrderSearch, IsNotAskedWhereItsStepsAreTooManyOrTakeMemoryInNoTime) {
  Placement p = test::on_devices(1);
  const int a = test::add(p, "a", {0}, 1);
  EXPECT_TRUE(orders_can_be_searched(Instance(p), 160));
  EXPECT_FALSE(orders_can_be_searched(Instance(p), 161));
  const int b = test::add(p, "b", {0}, 0, {.after = {a}});
  EXPECT_TRUE(orders_can_be_searched(Instance(p), 80));
  p.blocks[a].memory = 1;
  p.blocks[b].memory = -1;
  EXPECT_FALSE(orders_can_be_searched(Instance(p), 80));
}

// 5, 6, 0, 6, 0, 0 and 1, three devices: a round of the devices takes no less than 7 on device 0.
TEST(OrderSearch, FindsShortSpansOfBlocksThatTakeNoTime) {
  Placement p = test::on_devices(3);
  const int b0 = test::add(p, "b0", {2}, 5), b1 = test::add(p, "b1", {1}, 6);
  const int b2 = test::add(p, "b2", {0, 2}, 0, {.after = {b1}});
  const int b3 = test::add(p, "b3", {0}, 6, {.after = {b2}});
  test::add(p, "b4", {0}, 0, {.after = {b0}});
  test::add(p, "b5", {0, 1}, 0, {.after = {b3}});
  test::add(p, "b6", {0, 2}, 1, {.after = {b1, b2}});
  const Plan plan = test::searched(p, 7, Objective::span);
  EXPECT_EQ(plan.span, 7 * 7);
  EXPECT_TRUE(plan.optimal.objective);
}

}  // namespace
}  // namespace ostinato
