// SPDX-License-Identifier: Apache-2.0
// The trial of all schedules (docs/bounds.md, E) and the windows (W, M4) against an enumeration of all
// orders, and on the published optima that no formula gives.

#include "search/checker/exhaust.h"

#include <gtest/gtest.h>

#include "search/bounds/bounds.h"
#include "search/checker/bounds.h"
#include "search/checker/checker.h"
#include "search/placement/shapes.h"
#include "search/search.h"
#include "tests/search/all_orders.h"
#include "tests/search/all_spans.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using checker::Verdict;
using test::add;
using test::on_devices;

Verdict tried(const Placement& p, int n, Nanoseconds below, std::int64_t work = kMostExhaustionWork) {
  return checker::Bounds(p).exhaust(n, below, work).verdict;
}

/// F = I = W = 1 on 4 devices; room in activations.
Placement zero_bubble(const std::string& name, Bytes room) {
  return shape(name, {.devices = 4, .forward = 1, .backward = 1, .weight = 1, .memory = 1, .capacity = room});
}

struct Known {
  const char* shape;
  Bytes room;
  Nanoseconds optimum;
};

TEST(CheckerExhaust, ShowsThePublishedZeroBubbleOptima) {
  for (const Known& known : {Known{"v", 4, 27}, Known{"v", 3, 31}, Known{"v", 2, 41}, Known{"wave", 8, 51},
                             Known{"wave", 6, 53}, Known{"wave", 4, 59}}) {
    const Placement p = zero_bubble(known.shape, known.room);
    // A fiftieth of what verify may spend.
    EXPECT_EQ(tried(p, 8, known.optimum, kMostExhaustionWork / 50), Verdict::none)
        << known.shape << " " << known.room;
  }
  EXPECT_EQ(tried(zero_bubble("v", 3), 8, 32), Verdict::some);
  EXPECT_EQ(tried(zero_bubble("v", 2), 8, 42), Verdict::some);
  EXPECT_EQ(tried(zero_bubble("wave", 4), 8, 60), Verdict::some);
}

TEST(CheckerExhaust, ThreeMicroBatchesOfXUnderMemoryNeedThirty) {
  const Placement p = shape("x", {.devices = 4, .forward = 1, .backward = 3, .memory = 1, .capacity = 4});
  EXPECT_EQ(static_cast<int>(checker::Bounds(p).makespan(3, checker::kUnbounded).value), 30);  // by M5
  EXPECT_EQ(tried(p, 3, 30), Verdict::none);
  EXPECT_EQ(tried(p, 3, 31), Verdict::some);
}

TEST(CheckerExhaust, SaysWhereItStopped) {
  const checker::Exhaustion e = checker::Bounds(zero_bubble("wave", 4)).exhaust(8, 59, 10'000);
  EXPECT_EQ(e.verdict, Verdict::unknown);
  EXPECT_LT(e.work, 20'000);
}

TEST(CheckerExhaust, DoesNotApplyWhereNoTimeChangesMemoryOrFiguresAreHuge) {
  Placement p = on_devices(1, 4);
  add(p, "F", {0}, 0, {.memory = 1});
  EXPECT_EQ(tried(p, 2, 5), Verdict::inapplicable);
  p.blocks[0].time = 1;
  EXPECT_EQ(tried(p, 2, 2), Verdict::none);
  p.blocks[0].memory = Bytes{1} << 61;
  EXPECT_EQ(tried(p, 2, 2), Verdict::inapplicable);
  p.blocks[0] = {"F", "", Kind::other, {0}, Nanoseconds{1} << 60, 0, 0, {}};
  EXPECT_EQ(tried(p, 2, 2), Verdict::inapplicable);
}

/// Everything that is claimed about tiny placements, against the least makespan of all orders.
void compare(const Placement& p, int n) {
  const std::optional<Nanoseconds> least = test::AllOrders(p, n).least();
  if (!least) {
    EXPECT_EQ(tried(p, n, 1000), Verdict::none);
    return;
  }
  const Instance instance(p);
  EXPECT_LE(Bounds(instance).makespan(n), *least);
  const checker::Bound proved = checker::Bounds(p).makespan(n, checker::kUnbounded);
  EXPECT_LE(proved.value, *least) << proved.why;
  EXPECT_EQ(tried(p, n, *least), Verdict::none);
  EXPECT_EQ(tried(p, n, *least + 1), Verdict::some);
}

TEST(CheckerExhaust, AgreesWithAllOrdersOfTinyPlacements) {
  test::Dice random(23);
  for (int i = 0; i < 800; ++i) {
    SCOPED_TRACE(i);
    const int n = 1 + random.below(3);
    Placement p = test::any_small(random, test::most_blocks[n] - random.below(2));
    if (i % 4 != 0) test::add_memory(random, p);
    compare(p, n);
    if (HasFailure()) return;
  }
}

// Blocks of no time, which the random ones above do not have; memory is on none of them.
TEST(CheckerExhaust, AgreesWithAllOrdersWhereBlocksTakeNoTime) {
  test::Dice random(29);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    const int n = 1 + random.below(3);
    Placement p = test::any_small(random, test::most_blocks[n] - random.below(2));
    for (Block& block : p.blocks) {
      if (random.chance(40)) block.time = 0;
    }
    compare(p, n);
    if (HasFailure()) return;
  }
}

Verdict tried_span(const Placement& p, int n, Nanoseconds below) {
  return checker::Bounds(p).exhaust_span(n, below, kMostExhaustionWork).verdict;
}

TEST(CheckerExhaust, SpansOfPipelinesInLittleMemory) {
  for (const Known& known : {Known{"v", 3, 31}, Known{"v", 2, 41}, Known{"wave", 4, 59}}) {
    const Placement p = zero_bubble(known.shape, known.room);
    EXPECT_EQ(tried_span(p, 8, known.optimum), Verdict::none) << known.shape << " " << known.room;
    EXPECT_EQ(tried_span(p, 8, known.optimum + 1), Verdict::unknown) << known.shape << " " << known.room;
  }
}

TEST(CheckerExhaust, SaysNothingOfTheSpanWhereNoDeviceComesFirstOrLast) {
  Placement p = on_devices(2, 4);
  add(p, "A", {0}, 1);
  add(p, "B", {1}, 1);
  EXPECT_EQ(tried_span(p, 2, 2), Verdict::inapplicable);
}

TEST(CheckerExhaust, NoSpanIsBelowWhatIsShown) {
  test::Dice random(47);
  int shown = 0, beyond_formulas = 0;
  for (int i = 0; i < 600; ++i) {
    SCOPED_TRACE(i);
    const int n = 1 + random.below(3);
    Placement p = test::any_small(random, test::most_blocks[n] - random.below(2));
    for (Block& block : p.blocks) {
      if (block.after.empty()) block.devices = p.blocks.front().devices;
    }
    if (i % 4 != 0) test::add_memory(random, p);
    const std::optional<Nanoseconds> least = test::AllSpans(p, n).least();
    if (!least) continue;
    ASSERT_NE(tried_span(p, n, *least + 1), Verdict::none);
    if (tried_span(p, n, *least) != Verdict::none) continue;
    ++shown;
    beyond_formulas += checker::Bounds(p).span(n, checker::kUnbounded).value < *least ? 1 : 0;
  }
  EXPECT_GE(shown, 300);
  EXPECT_GE(beyond_formulas, 10);
}

TEST(CheckerExhaust, AClaimByExhaustionIsCheckedAgain) {
  const Placement p = zero_bubble("v", 3);
  Plan plan = search(p, {.micro_batches = 8, .time_limit_seconds = 0});
  EXPECT_EQ(plan.makespan, 31);
  EXPECT_TRUE(plan.optimal.makespan);
  EXPECT_TRUE(plan.by_exhaustion.makespan);
  EXPECT_TRUE(check_plan(plan, p).ok());
  const CheckResult stopped = check_plan(plan, p, 1'000);
  ASSERT_EQ(stopped.failures.size(), 2u);
  EXPECT_NE(stopped.failures[0].find("did not within its limit of 1000 of work"), std::string::npos)
      << stopped.failures[0];
  plan.lower_bound.makespan = 32;
  plan.optimal.makespan = false;
  EXPECT_FALSE(check_plan(plan, p).ok());
}

// On tiny placements a claim passes exactly where all orders say that it is true.
TEST(CheckerExhaust, ClaimsPassExactlyWhereTheyAreTrue) {
  test::Dice random(31);
  int beyond_formulas = 0;
  for (int i = 0; i < 80; ++i) {
    SCOPED_TRACE(i);
    const int n = 1 + random.below(3);
    Placement p = test::any_small(random, test::most_blocks[n] - random.below(2));
    test::add_memory(random, p);
    const std::optional<Nanoseconds> least = test::AllOrders(p, n).least();
    if (!least) continue;
    Plan plan = search(p, {.micro_batches = n, .time_limit_seconds = 0});
    for (const int above : {0, 1}) {
      plan.lower_bound.makespan = *least + above;
      plan.optimal.makespan = plan.makespan == plan.lower_bound.makespan;
      ASSERT_EQ(check_plan(plan, p).ok(), above == 0);
    }
    beyond_formulas += checker::Bounds(p).makespan(n, checker::kUnbounded).value < *least ? 1 : 0;
  }
  EXPECT_GE(beyond_formulas, 1);
}

}  // namespace
}  // namespace ostinato
