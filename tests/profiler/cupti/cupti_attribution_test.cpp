// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti/attribution.h"

#include <gtest/gtest.h>

namespace ostinato::cupti {
namespace {

Activity kernel(std::uint32_t correlation, Nanoseconds start, Nanoseconds end) {
  return {.start = start, .end = end, .correlation = correlation, .kind = ActivityKind::kernel};
}

TEST(CuptiAttribution, AddsUpByRange) {
  const Range a{1, 0, Kind::forward, 0}, b{2, 0, Kind::backward, 0};
  Records records;
  records.links = {{10, encode(a)}, {11, encode(a)}, {12, encode(b)}};
  records.activities = {kernel(11, 300, 350),
                        kernel(10, 100, 200),
                        kernel(12, 400, 401),
                        {.start = 210, .end = 215, .correlation = 10, .kind = ActivityKind::memcpy},
                        {.start = 220, .end = 221, .correlation = 10, .kind = ActivityKind::memset}};
  const DeviceTimes times = attribute(records);
  ASSERT_EQ(times.ranges.size(), 2u);
  EXPECT_EQ(times.ranges[0].range, a);
  EXPECT_EQ(times.ranges[0].kernel, 150);
  EXPECT_EQ(times.ranges[0].memcpy, 5);
  EXPECT_EQ(times.ranges[0].memset, 1);
  EXPECT_EQ(times.ranges[0].total(), 156);
  EXPECT_EQ(times.ranges[0].activities, 4);
  EXPECT_EQ(times.ranges[0].start, 100);
  EXPECT_EQ(times.ranges[0].end, 350);
  EXPECT_EQ(times.ranges[1].total(), 1);
}

TEST(CuptiAttribution, UntimedAndUnlinkedWorkIsCountedAndNotAddedUp) {
  Records records;
  records.links = {{10, encode({.layer = 0})}, {11, 0}};
  records.activities = {kernel(10, 100, 0), kernel(10, 0, 0), kernel(11, 100, 200), kernel(99, 100, 200)};
  const DeviceTimes times = attribute(records);
  EXPECT_TRUE(times.ranges.empty());
  EXPECT_EQ(times.losses.untimed, 2);
  EXPECT_EQ(times.losses.out_of_range, 2);
}

TEST(CuptiAttribution, EveryLaunchNeedsItsKernel) {
  Records records;
  records.activities = {kernel(1, 1, 2), kernel(3, 1, 2)};
  records.launches = {
      {.correlation = 1, .thread = 7, .start = 10, .end = 20},
      {.correlation = 2, .thread = 7, .start = 12, .end = 18, .driver = true},   // inside the first
      {.correlation = 3, .thread = 7, .start = 30, .end = 40, .driver = true},   // by itself
      {.correlation = 4, .thread = 8, .start = 12, .end = 18, .driver = true}};  // another thread
  const DeviceTimes times = attribute(records);
  EXPECT_EQ(times.losses.launches, 3);
  EXPECT_EQ(times.losses.launches_matched, 2);
}

TEST(CuptiAttribution, NothingLostIsComplete) {
  Losses losses;
  losses.ranges = 2;
  losses.records = 9;
  losses.launches = losses.launches_matched = 3;
  const Completeness whole = completeness(losses);
  EXPECT_TRUE(whole.complete);
  EXPECT_EQ(whole.reason, "");
  EXPECT_EQ(whole.expected, 3);
  EXPECT_EQ(whole.seen, 3);
}

TEST(CuptiAttribution, EachLossAloneMakesItIncompleteAndIsNamed) {
  const std::vector<std::pair<std::int64_t Losses::*, std::string>> losses = {
      {&Losses::launches, "4 kernel launches without a record"},
      {&Losses::dropped, "4 records dropped"},
      {&Losses::out_of_range, "4 kernels, copies or memsets outside"},
      {&Losses::untimed, "4 kernels, copies or memsets without times"},
      {&Losses::unknown, "4 records of an unknown kind"},
      {&Losses::cut_buffers, "4 buffers cut"},
      {&Losses::beyond_limit, "4 records beyond"},
      {&Losses::call_errors, "4 calls refused"},
      {&Losses::ranges, "4 ranges opened and no record at all"}};
  for (const auto& [field, words] : losses) {
    Losses one;
    one.*field = 4;
    EXPECT_FALSE(completeness(one).complete) << words;
    EXPECT_NE(completeness(one).reason.find(words), std::string::npos) << completeness(one).reason;
  }
  const std::vector<std::pair<std::int64_t BufferCounts::*, std::string>> of_buffers = {
      {&BufferCounts::not_returned, "4 buffers not returned"},
      {&BufferCounts::overwritten, "4 buffers overwritten"},
      {&BufferCounts::foreign, "4 buffers returned that another profiler"}};
  for (const auto& [field, words] : of_buffers) {
    Losses one;
    one.buffers.*field = 4;
    EXPECT_FALSE(completeness(one).complete) << words;
    EXPECT_NE(completeness(one).reason.find(words), std::string::npos) << completeness(one).reason;
  }
}

TEST(CuptiAttribution, SeveralLossesAreAllNamed) {
  Losses losses;
  losses.dropped = 2;
  losses.cut_buffers = 1;
  EXPECT_EQ(completeness(losses).reason, "2 records dropped by CUPTI; 1 buffers cut inside a record");
}

TEST(CuptiAttribution, LossesOfSessionsAddUp) {
  Losses idle, busy;  // a session in which nothing was launched
  idle.ranges = 5;
  busy.ranges = 2;
  busy.records = 7;
  busy.dropped = 1;
  busy.buffers.overwritten = 2;
  EXPECT_FALSE(completeness(idle).complete);
  Losses all;
  all += idle;
  EXPECT_FALSE(completeness(all).complete);  // nothing at all was recorded
  all += busy;
  EXPECT_EQ(all.ranges, 7);
  EXPECT_EQ(completeness(all).reason,
            "1 records dropped by CUPTI; 2 buffers overwritten before they were read");
}

}  // namespace
}  // namespace ostinato::cupti
