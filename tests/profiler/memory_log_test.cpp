// SPDX-License-Identifier: Apache-2.0
#include "profiler/memory/memory_log.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

#include "profiler/device/allocation_hook.h"
#include "profiler/memory/counting_allocator.h"
#include "tests/support/fake_device.h"

namespace ostinato {
namespace {

class MemoryLogs : public testing::Test {
 protected:
  MemoryLogs() { CountingAllocator::install(); }
  ~MemoryLogs() override { CountingAllocator::remove(); }

  static at::Tensor bytes(std::int64_t count) { return at::empty({count}, at::kByte); }
};

TEST_F(MemoryLogs, NotesWhatIsAllocatedAndFreedWhileItRuns) {
  const at::Tensor before = bytes(10);
  MemoryLog log({});
  log.start();
  const at::Tensor kept = bytes(100);
  bytes(1000);
  log.stop();
  const at::Tensor after = bytes(7);
  const std::vector<MemoryEvent> events = log.events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].address, reinterpret_cast<std::uintptr_t>(kept.data_ptr()));
  EXPECT_EQ(events[0].change, 100);
  EXPECT_EQ(events[1].change, 1000);
  EXPECT_EQ(events[2].change, -1000);
  EXPECT_EQ(events[2].address, events[1].address);
  EXPECT_EQ(events[1].live - events[2].live, 1000);
  EXPECT_TRUE(events[0].at <= events[1].at && events[1].at <= events[2].at);
  EXPECT_EQ(log.dropped(), 0);
}

TEST_F(MemoryLogs, AFreeOfWhatWasThereBeforeIsNoted) {
  at::Tensor before = bytes(10);
  MemoryLog log({});
  log.start();
  before.reset();
  log.stop();
  ASSERT_EQ(log.events().size(), 1u);
  EXPECT_EQ(log.events()[0].change, -10);
}

TEST_F(MemoryLogs, ItsLargestCountIsTheAllocatorsPeakWithManyThreads) {
  MemoryLog log({});
  reset_peak();
  log.start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) bytes(1 + (i * 37 + t * 101) % 5000);
    });
  }
  for (std::thread& thread : threads) thread.join();
  log.stop();
  const std::vector<MemoryEvent> events = log.events();
  ASSERT_EQ(events.size(), 4u * 200 * 2);
  const auto highest = std::max_element(events.begin(), events.end(),
                                        [](const auto& a, const auto& b) { return a.live < b.live; });
  EXPECT_EQ(highest->live, peak_bytes());
  std::map<std::uintptr_t, Bytes> live;  // no address is given twice before it is freed
  for (const MemoryEvent& event : events) {
    Bytes& held = live[event.address];
    EXPECT_EQ(held, event.change > 0 ? 0 : -event.change);
    held += event.change;
  }
}

TEST_F(MemoryLogs, WhatDoesNotFitIsCountedAndOneRunsAtATime) {
  MemoryLog small({.events = 3});
  small.start();
  EXPECT_THROW(MemoryLog({}).start(), std::logic_error);
  for (int i = 0; i < 4; ++i) bytes(8);
  small.stop();
  EXPECT_EQ(small.events().size(), 3u);
  EXPECT_EQ(small.dropped(), 5);
  small.start();  // forgets
  small.stop();
  EXPECT_EQ(small.events().size(), 0u);
  EXPECT_EQ(small.dropped(), 0);
}

TEST_F(MemoryLogs, ADevicesAllocatorTellsItsOwnCount) {
  const c10::Device device(kFakeDevice, 0);
  MemoryLog log({});
  log.start();
  const AllocationHook hook;
  int block = 0;
  c10::reportMemoryUsageToProfiler(&block, 512, 4096, 8192, device);
  c10::reportMemoryUsageToProfiler(&block, -512, 3584, 8192, device);
  c10::reportMemoryUsageToProfiler(&block, 64, 64, 64, c10::Device(c10::DeviceType::CPU));
  log.stop();
  ASSERT_EQ(log.events().size(), 2u);
  EXPECT_EQ(log.events()[0].change, 512);
  EXPECT_EQ(log.events()[0].live, 4096);
  EXPECT_EQ(log.events()[1].live, 3584);
  EXPECT_EQ(log.events()[1].address, reinterpret_cast<std::uintptr_t>(&block));
}

}  // namespace
}  // namespace ostinato
