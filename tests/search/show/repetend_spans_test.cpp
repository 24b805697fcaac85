// SPDX-License-Identifier: Apache-2.0
#include "search/show/repetend_spans.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "search/named/named.h"
#include "search/placement/shapes.h"
#include "search/plan/orders.h"
#include "search/show/routes.h"

namespace ostinato {
namespace {

Plan one_f_one_b(const Placement& placement, int micro_batches) {
  Plan plan;
  plan.micro_batches = micro_batches;
  plan.schedule =
      *earliest_starts(placement, micro_batches, *named_schedule("1f1b", placement, micro_batches).orders);
  plan.makespan = makespan_of(placement, plan.schedule);
  return plan;
}

TEST(RepetendSpans, LieBetweenWarmUpAndCoolDown) {
  const Placement placement = shape("v", {.devices = 2, .forward = 1000, .backward = 2000});
  Plan plan = one_f_one_b(placement, 10);
  // Device 0 runs F0, F1, a bubble, and from 4 us on a backward and a forward every 3 us.
  plan.steady_state = {.period = 3000, .unroll = 1, .first = 3, .count = 5};
  const auto spans = repetend_spans(plan, placement);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].begin, 4000);
  EXPECT_EQ(spans[1].begin, 1000);            // F0, from which on the last device repeats F and B
  EXPECT_EQ(spans[1].end, 1000 + 10 * 3000);  // to its last backward
  EXPECT_EQ(spans[1].count, 10);
  EXPECT_LT(spans[0].end, plan.makespan);
}

TEST(RepetendSpans, HoldEveryBlockOncePerPeriod) {
  for (const int devices : {1, 2, 3, 4}) {
    const Placement placement = shape("v", {.devices = devices, .forward = 1000, .backward = 2000});
    Plan plan = one_f_one_b(placement, 16);
    plan.steady_state = {.period = 3000, .unroll = 1, .first = 6, .count = 6};
    const auto spans = repetend_spans(plan, placement);
    for (int d = 0; d < devices; ++d) {
      ASSERT_GT(spans[d].count, 0) << d;
      for (int k = 0; k < spans[d].count; ++k) {
        const Nanoseconds begin = spans[d].begin + k * 3000;
        const auto starts = std::count_if(plan.schedule.begin(), plan.schedule.end(), [&](const auto& s) {
          return placement.blocks[s.block].devices[0] == d && s.start >= begin && s.start < begin + 3000;
        });
        EXPECT_EQ(starts, 2) << "device " << d << ", period " << k;
      }
    }
  }
}

TEST(RepetendSpans, AreEmptyWhereNothingRepeats) {
  const Placement placement = shape("v", {.devices = 2, .forward = 1000, .backward = 2000});
  Plan plan = one_f_one_b(placement, 4);
  for (const RepetendSpan& span : repetend_spans(plan, placement)) EXPECT_EQ(span.count, 0);
  plan.steady_state = {.period = 0, .unroll = 1, .first = 0, .count = 2};
  for (const RepetendSpan& span : repetend_spans(plan, placement)) EXPECT_EQ(span.count, 0);
}

TEST(Routes, LeadFromTheQuickestDeviceToEachThatLacksTheInput) {
  Placement placement = shape("m", {.devices = 3});  // its first stage is on all devices
  placement.link = {.latency = 700, .bytes_per_second = 0};
  placement.links[{0, 2}] = {.latency = 100, .bytes_per_second = 0};
  for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
    for (const Dependency& input : placement.blocks[b].after) {
      Nanoseconds slowest = 0;
      for (const Route& route : routes_of(placement, input, static_cast<int>(b))) {
        const auto& holders = placement.blocks[input.block].devices;
        EXPECT_TRUE(std::binary_search(holders.begin(), holders.end(), route.from));
        EXPECT_FALSE(std::binary_search(holders.begin(), holders.end(), route.to));
        slowest = std::max(slowest, route.time);
      }
      EXPECT_EQ(slowest, placement.transfer(input, static_cast<int>(b)));
    }
  }
}

}  // namespace
}  // namespace ostinato
