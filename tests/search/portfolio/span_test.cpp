// SPDX-License-Identifier: Apache-2.0
// Spans: the measured models of Zero Bubble, all below what was published, but for two that are the least.

#include <gtest/gtest.h>

#include "search/named/named.h"
#include "search/placement/instance.h"
#include "search/plan/orders.h"
#include "search/schedule/dispatch.h"
#include "search/schedule/shift.h"
#include "tests/search/checked.h"
#include "tests/search/published_spans.h"

namespace ostinato {
namespace {

TEST(Spans, AreProvedOfMeasuredModelsAndBelowThePublished) {
  int shorter = 0;
  for (const test::PublishedSpan& cell : test::published_spans) {
    SCOPED_TRACE(testing::Message() << cell.model << ", " << cell.micro_batches << " micro-batches");
    const Placement p = test::placement_of(cell);
    const Plan plan = test::searched(p, cell.micro_batches, Objective::span);
    EXPECT_TRUE(plan.optimal.objective);
    EXPECT_EQ(plan.lower_bound.objective, plan.span);
    const NamedSchedule published = named_schedule("zb-2p", p, cell.micro_batches);
    ASSERT_TRUE(published.orders) << published.why_not;
    const Nanoseconds theirs = span_of(p, *earliest_starts(p, cell.micro_batches, *published.orders));
    EXPECT_EQ((10'000 * (theirs - cell.work()) + theirs / 2) / theirs, cell.rate);
    EXPECT_LE(plan.span, theirs);
    shorter += plan.span < theirs ? 1 : 0;
  }
  EXPECT_EQ(shorter, 10);
}

TEST(Spans, OfDevicesThatWaitAreShorterThanOfThoseThatNeverDo) {
  const test::PublishedSpan& cell = test::published_spans[1];
  const Placement p = test::placement_of(cell);
  const Instance in(p);
  const auto span = [&](Nanoseconds within) {
    const std::vector<int> sequence =
        dispatch(in, cell.micro_batches, {.priority = Priority::deepest, .span = within});
    const auto early = as_early_as_possible(in, cell.micro_batches, sequence);
    return span_of(p, as_late_as_possible(in, cell.micro_batches, early));
  };
  const Nanoseconds least = cell.work() + 3 * 825;  // docs/bounds.md, S6
  EXPECT_EQ(span(least), least);
  EXPECT_GT(span(least - 1), least);
  EXPECT_GT(span(0), cell.work() * 106 / 100);
}

TEST(Spans, DevicesThatWaitShortenMakespansToo) {
  ShapeOptions options{.devices = 16, .forward = 298, .backward = 297, .weight = 188, .capacity = 8};
  options.link.latency = 5;
  EXPECT_LE(test::searched(shape("v", options), 64).makespan, 88'100);  // without them: 91,821
}

}  // namespace
}  // namespace ostinato
