// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/beat.h"

#include <gtest/gtest.h>

#include "search/placement/shapes.h"
#include "search/schedule/dispatch.h"
#include "search/schedule/incumbent.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

Placement halves(int devices, Bytes room) {
  ShapeOptions options{.devices = devices, .forward = 298, .backward = 297, .weight = 188, .capacity = room};
  options.link.latency = 5;
  return shape("v", options);
}

TEST(Beat, OfAChainIsTheWayToTheNextDeviceAndBack) {
  const Placement p = halves(4, 3);
  EXPECT_EQ(beat_of(Instance(p)), 298 + 5 + 297 + 5);
}

TEST(Beat, IsTheMostFrequentRoundTrip) {
  const Placement p = shape("v", {.devices = 5, .forward = {{1, 2, 2, 2, 9}}, .backward = {{1, 4, 4, 4, 9}}});
  EXPECT_EQ(beat_of(Instance(p)), 6);  // 1 + 4, then twice 2 + 4, then 2 + 9
}

TEST(Beat, ThereIsNoneWhereNothingComesBack) {
  const Placement forwards = shape("v", {.training = false});
  EXPECT_EQ(beat_of(Instance(forwards)), 0);
  const Placement one = shape("v", {.devices = 1});
  EXPECT_EQ(beat_of(Instance(one)), 0);
  Placement wide = test::on_devices(2);
  const int all = test::add(wide, "all", {0, 1}, 1);
  test::add(wide, "F", {0}, 1, {.after = {all}});
  EXPECT_EQ(beat_of(Instance(wide)), 0);
}

TEST(Beat, DispatchingOnItWaitsLess) {
  const Placement p = halves(16, 12);
  const Instance in(p);
  const auto span_of_rule = [&](Nanoseconds beat) {
    const DispatchRule rule{.priority = Priority::deepest, .span = 65'000, .beat = beat};
    Incumbent best(in, 64, Objective::span, 0);
    EXPECT_TRUE(best.offer(dispatch(in, 64, rule), "dispatch"));
    return best.score().span;
  };
  EXPECT_LT(span_of_rule(beat_of(in)), span_of_rule(0));
}

TEST(Beat, DispatchingEndsWhereAMicroBatchMayNotBegin) {
  const Placement p = halves(4, 1);
  const Instance in(p);
  const DispatchRule rule{.priority = Priority::oldest, .in_flight = 1, .span = 90'000, .beat = beat_of(in)};
  EXPECT_EQ(dispatch(in, 8, rule).size(), 8U * in.blocks());
}

}  // namespace
}  // namespace ostinato
