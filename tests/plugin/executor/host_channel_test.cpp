// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/host_channel.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "plugin/executor/error.h"
#include "tests/plugin/executor/support/thread_channel.h"

namespace ostinato {
namespace {

using namespace std::chrono_literals;
using testing::Blocking;
using testing::Exchange;
using testing::ThreadChannel;

constexpr auto kLong = 60s;

/// Counts what goes by the other channel.
class Counting : public ThreadChannel {
 public:
  Counting(Exchange& exchange, int rank, int& sends)
      : ThreadChannel(exchange, rank, Blocking::no), sends_(sends) {}
  std::unique_ptr<Transfer> send(std::vector<at::Tensor> tensors, int rank) override {
    ++sends_;
    return ThreadChannel::send(std::move(tensors), rank);
  }

 private:
  int& sends_;
};

/// Two ranks of this process, connected; `sends` of rank 0 by the other channel are counted from then on.
struct Pair {
  explicit Pair(int messages) {
    channels[0] = make_host_channel(std::make_unique<Counting>(exchange, 0, sends));
    channels[1] = make_host_channel(std::make_unique<ThreadChannel>(exchange, 1, Blocking::no));
    std::thread other([&] { channels[1]->open({{0, messages}}, kLong); });
    channels[0]->open({{1, messages}}, kLong);
    other.join();
    sends = 0;
  }

  std::vector<at::Tensor> carry(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> arrived;
    for (const at::Tensor& tensor : tensors) arrived.push_back(at::empty_like(tensor));
    const auto receive = channels[1]->receive(arrived, 0);
    const auto send = channels[0]->send(tensors, 1);
    EXPECT_TRUE(receive->wait(kLong));
    EXPECT_TRUE(send->wait(kLong));
    return arrived;
  }

  Exchange exchange;
  int sends = 0;
  std::unique_ptr<Channel> channels[2];
};

TEST(HostChannel, CarriesEveryKindOfTensorThroughMemory) {
  Pair pair(4);
  const std::vector<at::Tensor> message{at::arange(5, at::kLong), at::full({3, 2}, 1.5, at::kBFloat16),
                                        at::zeros({0, 4}), at::full({}, true, at::kBool),
                                        at::full({7}, -0.1, at::kDouble)};
  for (int turn = 0; turn < 20; ++turn) {
    const auto arrived = pair.carry(message);
    for (std::size_t t = 0; t < message.size(); ++t) EXPECT_TRUE(at::equal(arrived[t], message[t])) << t;
  }
  EXPECT_EQ(pair.sends, 0);
}

TEST(HostChannel, LargeMessagesGoByTheOtherChannelAndNoneIsMixedUp) {
  Pair pair(4);
  const at::Tensor fits = at::full({slot_bytes(4)}, 3, at::kByte);
  const at::Tensor does_not = at::full({slot_bytes(4) + 1}, 4, at::kByte);
  for (int turn = 0; turn < 3; ++turn) {
    for (const at::Tensor& tensor : {does_not, fits}) EXPECT_TRUE(at::equal(pair.carry({tensor})[0], tensor));
  }
  EXPECT_EQ(pair.sends, 3);
  EXPECT_LE(5 * slot_bytes(5), kMailboxBytes);
}

TEST(HostChannel, ASendIsOverWhenItWasReceived) {
  Pair pair(1);
  const auto send = pair.channels[0]->send({at::ones({2})}, 1);
  EXPECT_FALSE(send->wait(1ms));
  EXPECT_THROW(pair.channels[0]->send({at::ones({2})}, 1), ExecutionError);  // one at a time, it was said
  const auto receive = pair.channels[1]->receive({at::zeros({2})}, 0);
  EXPECT_TRUE(receive->wait(kLong));
  EXPECT_TRUE(send->wait(kLong));
}

/// Rank 1 has no memory in common with rank 0: it offers no mailbox, and can open none.
TEST(HostChannel, APeerElsewhereIsServedByTheOtherChannel) {
  Exchange exchange;
  ThreadChannel far(exchange, 1, Blocking::no);
  const at::Tensor offer = at::zeros({4}, at::kLong);
  const at::Tensor sent = at::arange(3, at::kFloat);
  const at::Tensor arrived = at::empty_like(sent);
  std::thread other([&] {
    for (const std::int64_t word : {-1, 0}) {  // no file; and no, not opened
      const auto answer = far.send({at::full({4}, word, at::kLong)}, 0);
      EXPECT_TRUE(far.receive({at::empty_like(offer)}, 0)->wait(kLong));
      EXPECT_TRUE(answer->wait(kLong));
    }
    EXPECT_TRUE(far.receive({arrived}, 0)->wait(kLong));
    EXPECT_TRUE(far.send({at::add(arrived, 1)}, 0)->wait(kLong));
  });
  const auto channel = make_host_channel(std::make_unique<ThreadChannel>(exchange, 0, Blocking::no));
  channel->open({{1, 2}}, kLong);
  EXPECT_TRUE(channel->send({sent}, 1)->wait(kLong));
  const at::Tensor back = at::empty_like(sent);
  EXPECT_TRUE(channel->receive({back}, 1)->wait(kLong));
  other.join();
  EXPECT_TRUE(at::equal(arrived, sent));
  EXPECT_TRUE(at::equal(back, at::add(sent, 1)));
}

TEST(HostChannel, SaysWhichRankDoesNotCome) {
  Exchange exchange;
  const auto channel = make_host_channel(std::make_unique<ThreadChannel>(exchange, 0, Blocking::no));
  try {
    channel->open({{3, 2}}, 20ms);
    FAIL();
  } catch (const TimeoutError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 3 did not create its executor"), std::string::npos);
  }
}

}  // namespace
}  // namespace ostinato
