// SPDX-License-Identifier: Apache-2.0
// On a real GPU with the real libcupti; skipped with the reason elsewhere. `ninja gpu` runs these alone, and
// docs/gpu-runs.md keeps what they said when they last ran.

#include <chrono>
#include <iostream>
#include <memory>

#include "tests/profiler/cupti/support.h"
#include "tests/profiler/cupti/support_gpu.h"

namespace ostinato::cupti {
namespace {

class CuptiGpu : public testing::Test {
 protected:
  void SetUp() override {
    try {
      gpu_ = std::make_unique<Gpu>();
      warm_up();
    } catch (const NoGpu& error) {
      GTEST_SKIP() << error.what();
    } catch (const Unavailable& error) {
      GTEST_SKIP() << error.what();
    }
  }

  /// The first session instruments what is loaded. Nothing is expected of it but that it ends.
  void warm_up() {
    Collector collector(CollectorOptions{});
    gpu_->launch();
    gpu_->synchronize();
    collector.stop();
  }

  /// For docs/gpu-runs.md.
  static void print(const Collector& collector, const DeviceTimes& times) {
    const Losses& lost = times.losses;
    std::cout << "gpu-run: libcupti " << collector.library().version << " (" << collector.library().path
              << (collector.library().shared ? ", as it was loaded" : "") << "): records " << lost.records
              << ", launches " << lost.launches_matched << " of " << lost.launches << ", dropped "
              << lost.dropped << ", out of range " << lost.out_of_range << ", untimed " << lost.untimed
              << ", unknown " << lost.unknown << ", cut " << lost.cut_buffers << ", not returned "
              << lost.buffers.not_returned << ", untouched " << lost.buffers.untouched << ", overwritten "
              << lost.buffers.overwritten << "\n";
  }

  std::unique_ptr<Gpu> gpu_;
};

TEST_F(CuptiGpu, EveryKindOfWorkIsTimedInItsRange) {
  Collector collector(CollectorOptions{});
  {
    ScopedRange range(collector, forward(1, 0));
    gpu_->set();
    gpu_->launch();
    gpu_->launch();
  }
  {
    ScopedRange range(collector, {.operator_id = 2, .layer = 0, .kind = Kind::backward, .micro_batch = 0});
    gpu_->copy();
  }
  gpu_->synchronize();
  const DeviceTimes times = collector.stop();
  print(collector, times);
  ASSERT_EQ(times.ranges.size(), 2u);
  EXPECT_EQ(times.ranges[0].activities, 3);
  EXPECT_GT(times.ranges[0].kernel, 0);
  EXPECT_GT(times.ranges[0].memset, 0);
  EXPECT_GT(times.ranges[1].memcpy, 0);
  EXPECT_LE(times.ranges[0].end, times.ranges[1].start);  // one stream
  EXPECT_TRUE(completeness(times.losses).complete) << completeness(times.losses).reason;
  EXPECT_EQ(gpu_->first_word(), 2u);
}

TEST_F(CuptiGpu, EveryOfManyLaunchesIsAccountedFor) {
  Collector collector({.buffer_bytes = 64 << 10, .max_buffers = 64});
  constexpr int kSteps = 20, kLaunches = 500;
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kLaunches; ++i) {
      ScopedRange range(collector, forward(i, 0, step));
      gpu_->launch();
    }
    gpu_->synchronize();
    collector.flush();
  }
  const DeviceTimes times = collector.stop();
  print(collector, times);
  EXPECT_EQ(times.losses.launches, kSteps * kLaunches);
  EXPECT_EQ(times.losses.launches_matched, kSteps * kLaunches);
  EXPECT_EQ(times.ranges.size(), static_cast<std::size_t>(kSteps * kLaunches));
  EXPECT_TRUE(completeness(times.losses).complete) << completeness(times.losses).reason;
}

/// Nanoseconds of the host for each call.
template <typename Call>
std::int64_t cost_of(int calls, Call call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call(i);
  const auto took = std::chrono::steady_clock::now() - begin;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(took).count() / calls;
}

TEST_F(CuptiGpu, WhatRangesAndRecordsCostTheHost) {
  constexpr int kCalls = 2000;
  const auto launch = [&](int) { gpu_->launch(); };
  cost_of(kCalls, launch);  // caches
  gpu_->synchronize();
  const std::int64_t bare = cost_of(kCalls, launch);
  gpu_->synchronize();
  Collector collector(CollectorOptions{});
  const std::int64_t range = cost_of(kCalls, [&](int i) { ScopedRange of(collector, forward(i, 0)); });
  const std::int64_t both = cost_of(kCalls, [&](int i) {
    ScopedRange of(collector, forward(i, 0));
    gpu_->launch();
  });
  gpu_->synchronize();
  const DeviceTimes times = collector.stop();
  print(collector, times);
  std::cout << "gpu-run: a launch takes the host " << bare << " ns, a range " << range
            << " ns, a launch in a range while recording " << both << " ns\n";
  EXPECT_EQ(times.losses.launches_matched, kCalls);
  EXPECT_TRUE(completeness(times.losses).complete) << completeness(times.losses).reason;
}

}  // namespace
}  // namespace ostinato::cupti
