// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti/buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace ostinato::cupti {
namespace {

/// As CUPTI's first record into it would.
void write_kind(BufferPool::Buffer& buffer) { buffer.data[0] = 10; }

TEST(CuptiBuffers, AReadBufferIsUsedAgain) {
  BufferPool pool;
  pool.begin(64, 4);
  const std::uint8_t* data = pool.take().data.get();
  pool.give(data, 24);
  auto filled = pool.filled();
  ASSERT_EQ(filled.size(), 1u);
  EXPECT_EQ(filled[0]->valid, 24u);
  pool.recycle(std::move(filled[0]));
  EXPECT_EQ(pool.take().data.get(), data);
  EXPECT_EQ(pool.counts().allocated, 1);
}

TEST(CuptiBuffers, AtTheLimitTheOldestFilledBufferIsOverwrittenAndCounted) {
  BufferPool pool;
  pool.begin(64, 2);
  const std::uint8_t* oldest = pool.take().data.get();
  const std::uint8_t* newest = pool.take().data.get();
  pool.give(oldest, 8);
  pool.give(newest, 16);
  EXPECT_EQ(pool.take().data.get(), oldest);
  EXPECT_EQ(pool.counts().overwritten, 1);
  EXPECT_EQ(pool.counts().allocated, 2);
  const auto filled = pool.filled();
  ASSERT_EQ(filled.size(), 1u);
  EXPECT_EQ(filled[0]->valid, 16u);
}

TEST(CuptiBuffers, ARequestIsNeverRefused) {
  BufferPool pool;
  pool.begin(64, 2);
  for (int i = 0; i < 5; ++i) write_kind(pool.take());  // CUPTI holds them all: grows
  EXPECT_EQ(pool.counts().not_returned, 5);
  EXPECT_EQ(pool.counts().overwritten, 0);
}

TEST(CuptiBuffers, ShrinksToItsLimitAgain) {
  BufferPool pool;
  pool.begin(64, 2);
  std::vector<const std::uint8_t*> held;
  for (int i = 0; i < 5; ++i) held.push_back(pool.take().data.get());
  for (const std::uint8_t* data : held) pool.give(data, 0);
  for (auto& buffer : pool.filled()) pool.recycle(std::move(buffer));
  EXPECT_EQ(pool.counts().allocated, 2);
}

TEST(CuptiBuffers, ALateBufferIsNotReadInTheNextSession) {
  BufferPool pool;
  pool.begin(64, 2);
  BufferPool::Buffer& held = pool.take();
  write_kind(held);
  const std::uint8_t* late = held.data.get();
  EXPECT_EQ(pool.end().not_returned, 1);
  pool.begin(64, 2);
  pool.give(late, 24);
  EXPECT_TRUE(pool.filled().empty());
  EXPECT_EQ(pool.counts().not_returned, 0);
  EXPECT_EQ(pool.counts().foreign, 0);
}

TEST(CuptiBuffers, ABufferThatCuptiKeepsWithoutARecordIsNoLoss) {
  BufferPool pool;
  pool.begin(64, 2);
  BufferPool::Buffer& used = pool.take();
  write_kind(used);
  pool.give(used.data.get(), 24);
  for (auto& buffer : pool.filled()) pool.recycle(std::move(buffer));
  pool.take();  // the same memory again, with the old record in it
  EXPECT_EQ(pool.counts().not_returned, 0);
  EXPECT_EQ(pool.counts().untouched, 1);
}

TEST(CuptiBuffers, ABufferOfAnotherProfilerIsLeftAloneAndCounted) {
  BufferPool pool;
  pool.begin(64, 2);
  const std::uint8_t foreign[8] = {};
  pool.give(foreign, 8);
  EXPECT_TRUE(pool.filled().empty());
  EXPECT_EQ(pool.counts().foreign, 1);
}

TEST(CuptiBuffers, MoreValidBytesThanTheBufferHasAreNotBelieved) {
  BufferPool pool;
  pool.begin(64, 2);
  pool.give(pool.take().data.get(), 1000);
  EXPECT_EQ(pool.filled().at(0)->valid, 64u);
}

TEST(CuptiBuffers, ThreadsTakeAndGiveWhileAnotherReads) {
  BufferPool pool;
  pool.begin(64, 8);
  constexpr int kThreads = 3, kRounds = 2000;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        BufferPool::Buffer& buffer = pool.take();
        std::fill_n(buffer.data.get(), 64, static_cast<std::uint8_t>(i));
        pool.give(buffer.data.get(), 64);
      }
      --running;
    });
  }
  std::int64_t read = 0;
  auto drain = [&] {
    for (auto& buffer : pool.filled()) {
      ++read;
      EXPECT_TRUE(std::all_of(buffer->data.get(), buffer->data.get() + 64,
                              [&](std::uint8_t byte) { return byte == buffer->data[0]; }));
      pool.recycle(std::move(buffer));
    }
  };
  while (running > 0) drain();
  for (std::thread& thread : threads) thread.join();
  drain();
  EXPECT_EQ(read + pool.counts().overwritten, kThreads * kRounds);
  EXPECT_EQ(pool.counts().not_returned, 0);
}

}  // namespace
}  // namespace ostinato::cupti
