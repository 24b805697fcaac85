// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/trace.h"

#include <gtest/gtest.h>

#include "plugin/executor/error.h"
#include "tests/support/fake_device.h"

namespace ostinato {
namespace {

class TraceTest : public ::testing::Test {
 protected:
  void ran(int index, Action action, int stage, int micro_batch) {
    trace.ran(index, action, stage, micro_batch, trace.now(), trace.now());
  }

  std::string failure(const std::function<void()>& act) {
    try {
      act();
    } catch (const ExecutionError& error) {
      return error.what();
    }
    return "";
  }

  std::vector<Instruction> planned = {{Action::receive_forward, 1, 0}, {Action::forward, 1, 0},
                                      {Action::receive_forward, 1, 1}, {Action::forward, 1, 1},
                                      {Action::backward, 1, 0},        {Action::backward, 1, 1}};
  Trace trace{planned, 1};
};

TEST_F(TraceTest, AcceptsThePlanAndReceivesThatComeLate) {
  trace.begin();
  ran(0, Action::receive_forward, 1, 0);
  ran(1, Action::forward, 1, 0);
  ran(3, Action::forward, 1, 1);
  ran(2, Action::receive_forward, 1, 1);
  ran(4, Action::backward, 1, 0);
  ran(5, Action::backward, 1, 1);
  EXPECT_NO_THROW(trace.finish());
  EXPECT_EQ(trace.records().size(), planned.size());
}

TEST_F(TraceTest, AnotherInstructionIsNamed) {
  trace.begin();
  EXPECT_EQ(failure([&] { ran(1, Action::forward, 1, 1); }),
            "rank 1 ran 1F1 where the plan has 1F0, instruction 1");
}

TEST_F(TraceTest, TwiceOrOutOfTurn) {
  trace.begin();
  ran(3, Action::forward, 1, 1);
  EXPECT_NE(failure([&] { ran(3, Action::forward, 1, 1); }).find("which has already run"), std::string::npos);
  EXPECT_NE(failure([&] { ran(1, Action::forward, 1, 0); }).find("out of turn"), std::string::npos);
}

TEST_F(TraceTest, WhatDidNotRunIsNamed) {
  trace.begin();
  ran(0, Action::receive_forward, 1, 0);
  EXPECT_EQ(failure([&] { trace.finish(); }), "rank 1 ended the step without 1F0, instruction 1 of the plan");
}

class DeviceTraceTest : public TraceTest {
 protected:
  DeviceTraceTest() { register_fake_device(); }
  ~DeviceTraceTest() override { fake_device_hangs(false); }

  void works(int index, Action action, int micro_batch, Nanoseconds time) {
    const Moment start = on_device.now();
    fake_device_works(time);
    on_device.ran(index, action, 1, micro_batch, start, on_device.now());
  }

  std::vector<Instruction> few = {{Action::receive_forward, 1, 0},
                                  {Action::forward, 1, 0},
                                  {Action::backward, 1, 0},
                                  {Action::send_backward, 1, 0}};
  Trace on_device{few, 1, kFakeDevice};
};

TEST_F(DeviceTraceTest, TimesAreTheDevices) {
  for (int step = 0; step < 2; ++step) {
    on_device.begin();
    works(0, Action::receive_forward, 0, 500);
    works(1, Action::forward, 0, 2000);
    works(2, Action::backward, 0, 3000);
    works(3, Action::send_backward, 0, 0);
    ASSERT_EQ(on_device.unfinished(std::chrono::seconds(10)), -1);
    on_device.finish();
    std::vector<std::pair<std::int64_t, std::int64_t>> times;
    for (const Record& r : on_device.records()) times.emplace_back(r.start_ns, r.end_ns);
    EXPECT_EQ(times, (std::vector<std::pair<std::int64_t, std::int64_t>>{
                         {0, 500}, {500, 2500}, {2500, 5500}, {5500, 5500}}));
  }
}

TEST_F(DeviceTraceTest, WhatTheDeviceHasNotEndedIsNamed) {
  on_device.begin();
  works(0, Action::receive_forward, 0, 500);
  fake_device_hangs(true);
  works(1, Action::forward, 0, 2000);
  works(2, Action::backward, 0, 3000);
  EXPECT_EQ(on_device.unfinished(std::chrono::milliseconds(5)), 1);
}

TEST_F(DeviceTraceTest, ASendThatNobodyReceivesIsNamed) {
  on_device.begin();
  works(0, Action::receive_forward, 0, 500);
  works(1, Action::forward, 0, 2000);
  works(2, Action::backward, 0, 3000);
  works(3, Action::send_backward, 0, 0);
  fake_device_hangs(true);
  EXPECT_EQ(on_device.unfinished(std::chrono::milliseconds(5)), 3);
}

}  // namespace
}  // namespace ostinato
