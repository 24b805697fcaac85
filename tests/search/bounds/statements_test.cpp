// SPDX-License-Identifier: Apache-2.0
// The search's writing of M4 to M6, S4 to S6 and E beside the checker's, and both beside the optimum.

#include "search/bounds/statements.h"

#include <gtest/gtest.h>

#include "search/bounds/bounds.h"
#include "search/checker/bounds.h"
#include "search/placement/shapes.h"
#include "tests/search/all_orders.h"
#include "tests/search/random_plan.h"
#include "tests/search/strange.h"

namespace ostinato {
namespace {

constexpr std::int64_t kWork = 40'000;

/// Equal bounds of every objective; E never says what the checker's denies.
void compare(const Placement& p, int n, int& shown) {
  const Instance in(p);
  const Instance mirror = in.reversed();
  const checker::Bounds theirs(p);
  EXPECT_EQ(bound_by_windows(in, mirror, Objective::makespan, n, 0, kWork),
            static_cast<Nanoseconds>(theirs.makespan_by_windows(n).value));
  EXPECT_EQ(std::max(Bounds(in).span(n),
                     bound_by_windows(in, mirror, Objective::span, n, std::numeric_limits<Nanoseconds>::max(),
                                      std::int64_t{1} << 40)),
            static_cast<Nanoseconds>(theirs.span(n, checker::kUnbounded, std::int64_t{1} << 40).value));
  EXPECT_EQ(std::max(Bounds(in).latency(), bound_by_windows(in, mirror, Objective::latency, n, 0, kWork)),
            static_cast<Nanoseconds>(theirs.latency().value));
  const Nanoseconds least = static_cast<Nanoseconds>(theirs.makespan(n, checker::kUnbounded).value);
  EXPECT_LE(Bounds(in).makespan(n), least);
  for (const Nanoseconds below : {least + 1, least + 2, least + 5}) {
    const Trial ours = try_all(in, mirror, Objective::makespan, n, below, kWork);
    if (ours.verdict == Trial::none) {
      ++shown;
      EXPECT_EQ(theirs.exhaust(n, below, 20 * kWork).verdict, checker::Verdict::none);
    }
    const Trial span = try_all(in, mirror, Objective::span, n, below, kWork);
    if (span.verdict == Trial::none) {
      EXPECT_EQ(theirs.exhaust_span(n, below, 20 * kWork).verdict, checker::Verdict::none);
    }
  }
}

TEST(Statements, SayOfRandomPlansWhatTheCheckerSays) {
  test::Random random(3);
  int shown = 0;
  for (int i = 0; i < 25 && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    Placement p = test::random_placement(random);
    const int n = 1 + i % 7;
    if (i % 2 == 0) test::limit_memory(p, test::random_plan(p, n, random), random.between(0, 40));
    compare(p, n, shown);
  }
}

TEST(Statements, SayOfStrangePlacementsWhatTheCheckerSays) {
  test::Dice random(5);
  int shown = 0;
  for (int i = 0; i < 70 && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    const Placement p = test::strange(random, 1 + random.below(6));
    compare(p, 1 + random.below(6), shown);
  }
  EXPECT_GT(shown, 5);
}

TEST(Statements, ShowThePublishedZeroBubbleOptima) {
  for (const auto& [room, optimum] : {std::pair<Bytes, Nanoseconds>{4, 27}, {3, 31}, {2, 41}}) {
    const Placement p =
        shape("v", {.devices = 4, .forward = 1, .backward = 1, .weight = 1, .memory = 1, .capacity = room});
    const Instance in(p);
    const Instance mirror = in.reversed();
    EXPECT_EQ(try_all(in, mirror, Objective::makespan, 8, optimum, 4'000'000).verdict, Trial::none) << room;
    EXPECT_EQ(try_all(in, mirror, Objective::makespan, 8, optimum + 1, 4'000'000).verdict, Trial::some)
        << room;
  }
}

}  // namespace
}  // namespace ostinato
