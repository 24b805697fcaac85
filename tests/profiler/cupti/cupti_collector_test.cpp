// SPDX-License-Identifier: Apache-2.0
// Whole sessions against the stand-in, which shows plumbing only and nothing about CUPTI itself
// (standin/standin.h).

#include "profiler/cupti/collector.h"

#include <optional>
#include <thread>

#include "tests/profiler/cupti/support.h"

namespace ostinato::cupti {
namespace {

class CuptiCollector : public WithStandIn {
 protected:
  CollectorOptions small_buffers(std::size_t bytes = 1024, std::size_t buffers = 4) {
    CollectorOptions options;
    options.buffer_bytes = bytes;
    options.max_buffers = buffers;
    return options;
  }

  std::string refusal(const CollectorOptions& options = {}) {
    try {
      Collector collector(library(), options);
    } catch (const Unavailable& error) {
      return error.what();
    }
    return "";
  }

  static void expect(const std::string& words, const std::string& text) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  }
};

TEST_F(CuptiCollector, TimesBelongToTheInnermostRange) {
  Collector collector(library(), {});
  {
    ScopedRange layer(collector, forward(-1, 0));
    cupti.call({.duration = 7});
    {
      ScopedRange linear(collector, forward(1, 0));
      ScopedRange addmm(collector, forward(2, 0));
      cupti.call({.duration = 50});
      cupti.call({.work = Work::memcpy, .duration = 5});
      cupti.call({.work = Work::memcpy_peer, .duration = 6});
      cupti.call({.work = Work::memset, .duration = 2});
    }
    cupti.call({.duration = 8});
  }
  cupti.run_device();
  const DeviceTimes times = collector.stop();
  ASSERT_EQ(times.ranges.size(), 2u);
  EXPECT_EQ(times.ranges[0].range, forward(-1, 0));
  EXPECT_EQ(times.ranges[0].total(), 15);
  EXPECT_EQ(times.ranges[1].range, forward(2, 0));
  EXPECT_EQ(times.ranges[1].kernel, 50);
  EXPECT_EQ(times.ranges[1].memcpy, 11);
  EXPECT_EQ(times.ranges[1].memset, 2);
  const Completeness whole = completeness(times.losses);
  EXPECT_TRUE(whole.complete) << whole.reason;
  EXPECT_EQ(whole.expected, 3);
  EXPECT_EQ(whole.seen, 3);
}

TEST_F(CuptiCollector, RecordsOfOneLaunchMayComeInAnyOrderAndInDifferentBuffers) {
  Collector collector(library(), small_buffers(256, 100));  // one kernel record fills a buffer
  for (int micro_batch = 0; micro_batch < 20; ++micro_batch) {
    ScopedRange range(collector, forward(1, 0, micro_batch));
    cupti.call({.duration = static_cast<std::uint64_t>(10 + micro_batch)});
    if (micro_batch % 3 == 0) collector.flush();
  }
  cupti.run_device(/*reversed=*/true);
  const DeviceTimes times = collector.stop();
  ASSERT_EQ(times.ranges.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(times.ranges[i].total(), 10 + i);
}

TEST_F(CuptiCollector, ThreadsHaveRangesOfTheirOwn) {
  Collector collector(library(), {});
  ScopedRange outer(collector, forward(1, 0));
  std::thread([&] {
    ScopedRange inner(collector, {.operator_id = 2, .layer = 0, .kind = Kind::backward, .micro_batch = 0});
    cupti.call({.duration = 30});
  }).join();
  cupti.call({.duration = 40});
  cupti.run_device();
  const DeviceTimes times = collector.stop();
  ASSERT_EQ(times.ranges.size(), 2u);
  EXPECT_EQ(times.ranges[0].total(), 40);
  EXPECT_EQ(times.ranges[1].range.kind, Kind::backward);
  EXPECT_EQ(times.ranges[1].total(), 30);
}

TEST_F(CuptiCollector, RangesOpenAndCloseOnManyThreadsAtOnce) {
  Collector collector(library(), {});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&collector, t] {
      for (int i = 0; i < 1000; ++i) ScopedRange range(collector, forward(i, t));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const DeviceTimes times = collector.stop();
  EXPECT_EQ(times.losses.ranges, 4000);
  EXPECT_EQ(times.losses.call_errors, 0);
}

TEST_F(CuptiCollector, DroppedRecordsAreCountedAndAskedForOutsideTheCallback) {
  Collector collector(library(), small_buffers(256));
  collector.push(forward(1, 0));
  cupti.call({});
  cupti.drop_next = 2;
  cupti.call({});
  collector.pop();
  cupti.run_device();
  collector.flush();
  const DeviceTimes times = collector.stop();
  EXPECT_EQ(times.losses.dropped, 2);
  EXPECT_FALSE(cupti.asked_dropped_in_callback);
  const Completeness lost = completeness(times.losses);
  EXPECT_FALSE(lost.complete);
  EXPECT_EQ(lost.dropped, 2);
}

TEST_F(CuptiCollector, AKernelThatVanishesWithoutBeingCountedIsNoticed) {
  Collector collector(library(), {});
  collector.push(forward(1, 0));
  cupti.call({.loses_kernel = true});
  cupti.call({.nested_driver = true});
  cupti.call({.driver = true});
  cupti.call({.fails = true});
  collector.pop();
  cupti.run_device();
  const Completeness lost = completeness(collector.stop().losses);
  EXPECT_EQ(lost.expected, 3);
  EXPECT_EQ(lost.seen, 2);
  EXPECT_FALSE(lost.complete);
}

TEST_F(CuptiCollector, WorkOutsideEveryRangeIsCounted) {
  Collector collector(library(), {});
  cupti.call({});
  cupti.run_device();
  const DeviceTimes times = collector.stop();
  EXPECT_TRUE(times.ranges.empty());
  EXPECT_EQ(times.losses.out_of_range, 1);
  EXPECT_EQ(completeness(times.losses).out_of_range, 1);
}

TEST_F(CuptiCollector, WhatStillRunsAtTheEndHasNoTime) {
  Collector collector(library(), {});
  collector.push(forward(1, 0));
  cupti.call({});
  collector.pop();
  const DeviceTimes times = collector.stop();  // the device was not synchronised
  EXPECT_EQ(times.losses.untimed, 1);
  EXPECT_FALSE(completeness(times.losses).complete);
}

TEST_F(CuptiCollector, ACutBufferIsCounted) {
  Collector collector(library(), {});
  collector.push(forward(1, 0));
  cupti.call({});
  collector.pop();
  cupti.run_device();
  cupti.cut_bytes = 8;
  const DeviceTimes times = collector.stop();
  EXPECT_EQ(times.losses.cut_buffers, 1);
  EXPECT_FALSE(completeness(times.losses).complete);
}

TEST_F(CuptiCollector, BuffersNotReturnedAreCountedAndComeTooLateForTheNextSession) {
  {
    Collector collector(library(), {});
    collector.push(forward(1, 0));
    cupti.call({});
    collector.pop();
    cupti.run_device();
    cupti.returns_buffers = false;
    const DeviceTimes times = collector.stop();
    EXPECT_EQ(times.losses.buffers.not_returned, 1);
    EXPECT_FALSE(completeness(times.losses).complete);
    cupti.returns_buffers = true;
  }
  Collector next(library(), {});
  cupti.hand_over();  // the first session's
  const DeviceTimes times = next.stop();
  EXPECT_EQ(times.losses.records, 0);
  EXPECT_TRUE(completeness(times.losses).complete) << completeness(times.losses).reason;
}

TEST_F(CuptiCollector, ThePoolIsBoundedAndNeverRefuses) {
  Collector collector(library(), small_buffers(256, 3));
  collector.push(forward(1, 0));
  for (int i = 0; i < 50; ++i) cupti.call({});
  collector.pop();
  cupti.run_device();
  EXPECT_GT(cupti.requests, 20u);
  const DeviceTimes times = collector.stop();
  EXPECT_LE(times.losses.buffers.allocated, 3);
  EXPECT_GT(times.losses.buffers.overwritten, 0);
  EXPECT_FALSE(completeness(times.losses).complete);
}

TEST_F(CuptiCollector, FlushingBetweenStepsKeepsThePoolSmallAndWhole) {
  Collector collector(library(), small_buffers(1024, 3));
  for (int step = 0; step < 50; ++step) {
    collector.push(forward(1, 0, step));
    cupti.call({});
    collector.pop();
    cupti.run_device();
    collector.flush();
  }
  const DeviceTimes times = collector.stop();
  EXPECT_LE(times.losses.buffers.allocated, 3);
  EXPECT_TRUE(completeness(times.losses).complete) << completeness(times.losses).reason;
  EXPECT_EQ(times.ranges.size(), 50u);
}

TEST_F(CuptiCollector, RecordsThatWereNotAskedForAreCounted) {
  Collector collector(library(), {});
  cupti.emit(/*MARKER*/ 12, 56);
  const DeviceTimes times = collector.stop();
  EXPECT_EQ(times.losses.unknown, 1);
  EXPECT_FALSE(completeness(times.losses).complete);
}

TEST_F(CuptiCollector, AnotherProfilersBufferIsLeftAlone) {
  Collector collector(library(), {});
  cupti.hand_over_foreign();
  EXPECT_EQ(collector.stop().losses.buffers.foreign, 1);
}

TEST_F(CuptiCollector, ClosingARangeThatIsNotOpenIsCounted) {
  Collector collector(library(), {});
  collector.pop();
  EXPECT_EQ(collector.stop().losses.call_errors, 1);
}

TEST_F(CuptiCollector, RangesWithoutAnyRecordAreNotTakenForIdleness) {
  Collector collector(library(), {});
  collector.push(forward(1, 0));
  collector.pop();
  expect("no record at all", completeness(collector.stop().losses).reason);
}

TEST_F(CuptiCollector, RefusesWhereAnotherSubscriberHoldsCuptiAndNamesIt) {
  cupti.holder = "CUPTI for Kineto";
  expect("held by CUPTI for Kineto", refusal());
  cupti.holder.clear();
  EXPECT_EQ(refusal(), "");  // nothing of the refused attempt is left
}

TEST_F(CuptiCollector, RefusesWhileATorchProfileRuns) {
  expect("torch.profiler, which runs now", refusal({.profiler_running = "torch.profiler"}));
  EXPECT_FALSE(cupti.subscribed);
}

TEST_F(CuptiCollector, OneSessionAtATime) {
  Collector first(library(), {});
  expect("another ostinato profile", refusal());
  first.stop();
  EXPECT_EQ(refusal(), "");
}

TEST_F(CuptiCollector, SaysWhichKindCannotBeRecordedAndLetsGo) {
  cupti.refused_kinds = {10};
  expect("kind 10: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", refusal());
  EXPECT_FALSE(cupti.subscribed);
  EXPECT_TRUE(cupti.enabled.empty());
}

TEST_F(CuptiCollector, LeavesCuptiAsItWas) {
  std::optional<Collector> collector(std::in_place, library(), CollectorOptions{});
  EXPECT_TRUE(cupti.subscribed);
  EXPECT_EQ(cupti.subscriber_name, "ostinato");
  EXPECT_TRUE(cupti.enabled.contains(39));
  collector.reset();  // without stop()
  EXPECT_FALSE(cupti.subscribed);
  EXPECT_TRUE(cupti.enabled.empty());
}

}  // namespace
}  // namespace ostinato::cupti
