// SPDX-License-Identifier: Apache-2.0
#include "profiler/memory/counting_allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

namespace ostinato {
namespace {

class CountingAllocatorTest : public testing::Test {
 protected:
  void SetUp() override { CountingAllocator::install(); }
  void TearDown() override { CountingAllocator::remove(); }
};

TEST_F(CountingAllocatorTest, CountsWhatIsAskedForExactly) {
  const Bytes before = live_bytes();
  {
    const at::Tensor tensor = at::empty({3, 7});
    EXPECT_EQ(live_bytes() - before, 3 * 7 * 4);
    const at::Tensor view = tensor.view({21});
    EXPECT_EQ(live_bytes() - before, 3 * 7 * 4);
  }
  EXPECT_EQ(live_bytes(), before);
}

TEST_F(CountingAllocatorTest, KeepsThePeakUntilItIsReset) {
  reset_peak();
  const Bytes before = live_bytes();
  at::empty({1000}, at::kByte);
  EXPECT_EQ(peak_bytes() - before, 1000);
  EXPECT_EQ(live_bytes(), before);
  reset_peak();
  EXPECT_EQ(peak_bytes(), before);
}

TEST_F(CountingAllocatorTest, SeesOtherThreads) {
  const Bytes before = live_bytes(), here = thread_allocated_bytes();
  at::Tensor tensor;
  std::thread([&] { tensor = at::empty({64}, at::kByte); }).join();
  EXPECT_EQ(live_bytes() - before, 64);
  EXPECT_EQ(thread_allocated_bytes(), here);
}

TEST_F(CountingAllocatorTest, AlignsAsTorchDoes) {
  for (const int size : {1, 63, 64, 65, 4096}) {
    const at::Tensor tensor = at::empty({size}, at::kByte);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64, 0u) << size;
  }
}

TEST_F(CountingAllocatorTest, EmptyTensorsAndResizesAreCounted) {
  const Bytes before = live_bytes();
  at::Tensor tensor = at::empty({0});
  EXPECT_EQ(live_bytes(), before);
  tensor.resize_({10});
  EXPECT_EQ(live_bytes() - before, 40);
  tensor.resize_({100});
  EXPECT_EQ(live_bytes() - before, 400);
}

TEST_F(CountingAllocatorTest, BlocksOutliveIt) {
  const Bytes before = live_bytes();
  at::Tensor tensor = at::ones({16});
  CountingAllocator::remove();
  EXPECT_FALSE(CountingAllocator::installed());
  at::Tensor uncounted = at::ones({16});
  EXPECT_EQ(live_bytes() - before, 64);
  EXPECT_EQ(tensor.sum().item<float>(), 16);
  tensor.reset();
  EXPECT_EQ(live_bytes(), before);
  CountingAllocator::install();
  uncounted.reset();  // it was not counted, and is not given back
  EXPECT_EQ(live_bytes(), before);
}

}  // namespace
}  // namespace ostinato
