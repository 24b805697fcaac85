// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/near_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include "plugin/executor/error.h"
#include "plugin/executor/host_channel.h"
#include "tests/plugin/executor/support/thread_channel.h"

namespace ostinato {
namespace {

using namespace std::chrono_literals;
using testing::Blocking;
using testing::Exchange;
using testing::ThreadChannel;

constexpr auto kLong = 60s;

/// Calls act(rank, its NearRanks) on `count` ranks that are threads.
template <typename Act>
void on_ranks(int count, Act act, std::chrono::nanoseconds timeout = kLong) {
  Exchange exchange;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      NearRanks ranks(make_host_channel(std::make_unique<ThreadChannel>(exchange, rank, Blocking::no)), rank,
                      count, timeout);
      act(rank, ranks);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Figures that round: sums in different orders differ.
at::Tensor figures(int rank, std::int64_t elements, at::ScalarType type = at::kFloat) {
  return at::sin(at::arange(elements, at::kDouble) * (rank + 1)).mul(std::pow(10.0, rank)).to(type);
}

TEST(NearRanks, SumsAreAddedInTheOrderOfTheRanks) {
  for (const int count : {2, 3, 4}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      // Nothing, one element, and some pieces of which the last is not full.
      for (const std::int64_t elements : {0, 1, 200'001}) {
        at::Tensor expected = figures(0, elements, type);
        for (int rank = 1; rank < count; ++rank) expected.add_(figures(rank, elements, type));
        on_ranks(count, [&](int rank, NearRanks& ranks) {
          ASSERT_TRUE(ranks.are_near());
          const at::Tensor own = figures(rank, elements, type);
          ranks.sum(own);
          EXPECT_TRUE(at::equal(own, expected)) << rank << " of " << count << ", " << elements;
        });
      }
    }
  }
}

TEST(NearRanks, SumsKeepTheShape) {
  on_ranks(2, [](int rank, NearRanks& ranks) {
    const at::Tensor own = at::full({3, 5, 2}, rank + 1.0);
    ranks.sum(own);
    EXPECT_TRUE(at::equal(own, at::full({3, 5, 2}, 3.0)));
  });
}

TEST(NearRanks, GatheredTensorsStandByRank) {
  on_ranks(4, [](int rank, NearRanks& ranks) {
    for (const std::int64_t elements : {1, 100'003}) {
      const std::vector<at::Tensor> everyone = ranks.gather(figures(rank, elements));
      ASSERT_EQ(everyone.size(), 4U);
      for (int r = 0; r < 4; ++r) EXPECT_TRUE(at::equal(everyone[r], figures(r, elements)));
    }
  });
}

TEST(NearRanks, ManyBroadcastsOfARankThatRunsAheadArriveInOrder) {
  constexpr int kTurns = 100;
  on_ranks(3, [](int rank, NearRanks& ranks) {
    for (int turn = 0; turn < kTurns; ++turn) {
      const at::Tensor tensor = rank == 1 ? at::full({7}, turn, at::kLong) : at::zeros({7}, at::kLong);
      ranks.broadcast(tensor, 1);
      EXPECT_TRUE(at::equal(tensor, at::full({7}, turn, at::kLong)));
    }
  });
}

TEST(NearRanks, CallsOfSeveralKindsFollowEachOther) {
  on_ranks(3, [](int rank, NearRanks& ranks) {
    for (int turn = 0; turn < 50; ++turn) {
      const at::Tensor own = at::full({2}, static_cast<double>(rank + turn));
      ranks.sum(own);
      EXPECT_TRUE(at::equal(own, at::full({2}, 3.0 + 3 * turn)));
      EXPECT_TRUE(at::equal(ranks.gather(own + rank)[2], own + 2));
      ranks.broadcast(own, turn % 3);
    }
  });
}

TEST(NearRanks, GradientsAreNotRecorded) {
  on_ranks(2, [](int, NearRanks& ranks) {
    const at::Tensor own = at::ones({4}).requires_grad_(true);
    ranks.sum(own);
    EXPECT_TRUE(at::equal(own.detach(), at::full({4}, 2.0)));
    EXPECT_FALSE(own.grad_fn());
  });
}

TEST(NearRanks, ARankThatDoesNotComeIsNamed) {
  on_ranks(
      2,
      [](int rank, NearRanks& ranks) {
        if (rank == 1) return;
        try {
          ranks.sum(at::ones({4}));
          ADD_FAILURE() << "nobody was there";
        } catch (const TimeoutError& error) {
          EXPECT_NE(std::string(error.what()).find("rank 1 of 2"), std::string::npos) << error.what();
        }
      },
      1s);
}

TEST(NearRanks, RanksThatShareNoMemoryAreNotNear) {
  Exchange exchange;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      NearRanks ranks(std::make_unique<ThreadChannel>(exchange, rank, Blocking::no), rank, 2, kLong);
      EXPECT_FALSE(ranks.are_near());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NearRanks, TensorsThatDoNotLieInARowAreRefused) {
  on_ranks(2, [](int, NearRanks& ranks) { EXPECT_THROW(ranks.sum(at::ones({4, 4}).t()), ExecutionError); });
}

}  // namespace
}  // namespace ostinato
