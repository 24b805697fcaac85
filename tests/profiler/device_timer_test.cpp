// SPDX-License-Identifier: Apache-2.0
// From operators that torch runs to rows with a device's times: with CUPTI's stand-in
// (cupti/standin/standin.h), which shows that records reach the rows and nothing about CUPTI itself, and with
// the events of a device that is made up.

#include "profiler/device/device_timer.h"

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <cstdlib>
#include <thread>

#include "profiler/device/event_timer.h"
#include "profiler/operators/operator_rows.h"
#include "tests/profiler/cupti/support.h"
#include "tests/support/fake_device.h"

namespace ostinato {
namespace {

/// An operator that launches work of so many nanoseconds, on the stand-in and on the made-up device.
at::Tensor launch(const at::Tensor& x, std::int64_t time) {
  cupti::stand_in().call({.duration = static_cast<std::uint64_t>(time)});
  fake_device_works(time);
  return x;
}

/// One that launches before and after another operator.
at::Tensor launch_around(const at::Tensor& x, std::int64_t time);

TORCH_LIBRARY(ostinato_test, library) {
  library.def("launch(Tensor x, int time) -> Tensor", &launch);
  library.def("launch_around(Tensor x, int time) -> Tensor", &launch_around);
}

at::Tensor run(const char* name, std::int64_t time) {
  static const at::Tensor x = at::ones({1});
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<at::Tensor(const at::Tensor&, std::int64_t)>()
      .call(x, time);
}

at::Tensor launch_around(const at::Tensor& x, std::int64_t time) {
  launch(x, 1);
  run("ostinato_test::launch", time);
  launch(x, 2);
  return x;
}

const OperatorCost* find(const std::vector<OperatorCost>& rows, int layer, const std::string& phase,
                         const std::string& name) {
  for (const OperatorCost& row : rows) {
    if (row.layer == layer && row.phase == phase && row.name == "ostinato_test::" + name) return &row;
  }
  return nullptr;
}

class DeviceTimers : public testing::Test {
 protected:
  DeviceTimers() : standin(cupti::stand_in()) {
    standin.reset();
    register_fake_device();
    setenv("OSTINATO_CUPTI", CUPTI_STANDIN, 1);
  }
  ~DeviceTimers() override {
    unsetenv("OSTINATO_CUPTI");
    dlclose(driver);
  }

  /// Three repeats of two layers, the second with its backward on a thread of its own, as torch's is.
  void run_model(OperatorRecorder& recorder, DeviceTimer* timer) {
    recorder.start({.timer = timer});
    for (int repeat = 0; repeat < 3; ++repeat) {
      recorder.begin_pass(0, "forward", repeat);
      run("ostinato_test::launch", 100);
      run("ostinato_test::launch", 10 + repeat);
      recorder.end_pass();
      run("ostinato_test::launch", 7);  // in no pass: preparation
      recorder.begin_pass(1, "forward", repeat);
      run("ostinato_test::launch_around", 50);
      recorder.end_pass();
      recorder.begin_pass(1, "backward", repeat);
      std::thread([] { run("ostinato_test::launch", 70); }).join();
      recorder.end_pass();
    }
    recorder.stop();
    standin.run_device();
  }

  void expect_times_of_the_model(const OperatorRecorder& recorder, const cupti::DeviceTimes& times) {
    const auto rows = operator_rows(recorder, times);
    const OperatorCost* first = find(rows, 0, "forward", "launch");
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(first->calls, 2);
    EXPECT_EQ(first->self_time.low, 110);
    EXPECT_EQ(first->self_time.median, 111);
    EXPECT_EQ(first->self_time.high, 112);
    EXPECT_EQ(find(rows, 1, "forward", "launch")->self_time.median, 50);
    EXPECT_EQ(find(rows, 1, "forward", "launch_around")->self_time.median, 3);  // without what it calls
    EXPECT_EQ(find(rows, 1, "backward", "launch")->self_time.median, 70);
  }

  StandIn& standin;
  void* driver = dlopen(CUDA_STANDIN, RTLD_NOW);  // as if there were one
};

TEST_F(DeviceTimers, RecordsOfCuptiReachTheRowsOfTheProfile) {
  TimerChoice choice = choose_timer(kFakeDevice, {});
  EXPECT_EQ(choice.timer->name(), "cupti");
  EXPECT_EQ(choice.why_not_cupti, "");
  OperatorRecorder recorder;
  run_model(recorder, choice.timer.get());
  const cupti::DeviceTimes times = choice.timer->stop();
  expect_times_of_the_model(recorder, times);
  const Completeness state = cupti::completeness(times.losses);
  EXPECT_TRUE(state.complete) << state.reason;
  EXPECT_EQ(state.expected, 3 * 7);  // every launch, those in no pass too
  EXPECT_EQ(state.seen, 3 * 7);
}

TEST_F(DeviceTimers, ALostKernelMakesTheProfileIncomplete) {
  TimerChoice choice = choose_timer(kFakeDevice, {});
  OperatorRecorder recorder;
  recorder.start({.timer = choice.timer.get()});
  recorder.begin_pass(0, "forward");
  run("ostinato_test::launch", 100);
  standin.call({.loses_kernel = true});
  recorder.stop();
  standin.run_device();
  const Completeness state = cupti::completeness(choice.timer->stop().losses);
  EXPECT_FALSE(state.complete);
  EXPECT_EQ(state.expected - state.seen, 1);
}

TEST_F(DeviceTimers, WhatIsLaunchedBesideOperatorsBelongsToTheLayer) {
  TimerChoice choice = choose_timer(kFakeDevice, {});
  OperatorRecorder recorder;
  recorder.start({.timer = choice.timer.get()});
  recorder.begin_pass(4, "backward_weight", 2);
  standin.call({.duration = 30});
  recorder.stop();
  standin.run_device();
  const cupti::DeviceTimes times = choice.timer->stop();
  ASSERT_EQ(times.ranges.size(), 1u);
  EXPECT_EQ(times.ranges[0].range, (cupti::Range{-1, 4, Kind::backward_weight, 2}));
  EXPECT_TRUE(operator_rows(recorder, times).empty());
}

TEST_F(DeviceTimers, EventsTimeWhereAnotherToolHoldsCupti) {
  standin.holder = "Nsight Systems";
  TimerChoice choice = choose_timer(kFakeDevice, {});
  EXPECT_EQ(choice.timer->name(), "device-events");
  EXPECT_NE(choice.why_not_cupti.find("Nsight Systems"), std::string::npos) << choice.why_not_cupti;
  OperatorRecorder recorder;
  run_model(recorder, choice.timer.get());
  const cupti::DeviceTimes times = choice.timer->stop();
  expect_times_of_the_model(recorder, times);
  EXPECT_TRUE(cupti::completeness(times.losses).complete);
}

TEST_F(DeviceTimers, EventsThatDoNotFitOrAreRefusedAreCounted) {
  EventTimer small(kFakeDevice, {.marks_per_thread = 3, .threads = 1});
  for (int i = 0; i < 3; ++i) {
    small.open({.operator_id = i, .layer = 0, .kind = Kind::forward, .micro_batch = 0});
    small.close();
  }
  std::thread([&] { small.open({}); }).join();  // there is no log for a second thread
  EXPECT_EQ(small.stop().losses.beyond_limit, 4);

  EventTimer refused(kFakeDevice, {});
  fake_device_refuses_events(1);
  refused.open({});
  refused.close();
  const Completeness state = cupti::completeness(refused.stop().losses);
  EXPECT_FALSE(state.complete);
  EXPECT_NE(state.reason.find("1 calls refused"), std::string::npos) << state.reason;
}

TEST_F(DeviceTimers, ADeviceWithoutEventsIsToldApart) {
  standin.holder = "another tool";
  EXPECT_THROW(choose_timer(c10::DeviceType::CPU, {}), NoTimer);
}

TEST(AllocationHook, CountsWhatADeviceGivesToThisThread) {
  const Bytes before = device_allocated_bytes();
  {
    const AllocationHook hook;
    c10::reportMemoryUsageToProfiler(nullptr, 100, 0, 0, c10::Device(kFakeDevice, 0));
    c10::reportMemoryUsageToProfiler(nullptr, -40, 0, 0, c10::Device(kFakeDevice, 0));
    c10::reportMemoryUsageToProfiler(nullptr, 7, 0, 0, c10::Device(c10::DeviceType::CPU));
    std::thread([&] {
      c10::reportMemoryUsageToProfiler(nullptr, 5, 0, 0, c10::Device(kFakeDevice, 0));
    }).join();
  }
  c10::reportMemoryUsageToProfiler(nullptr, 9, 0, 0, c10::Device(kFakeDevice, 0));
  EXPECT_EQ(device_allocated_bytes() - before, 100);
}

}  // namespace
}  // namespace ostinato
