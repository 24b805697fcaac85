// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/c10d_channel.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tests/support/fake_memory.h"

namespace ostinato {
namespace {

using namespace std::chrono_literals;

/// A process group that notes how its transfers were waited for.
class Noting : public c10d::ProcessGroup {
 public:
  Noting() : ProcessGroup(0, 2) {}
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int, int) override {
    return work(tensors);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int, int) override {
    return work(tensors);
  }

  std::vector<at::Tensor> given;
  std::vector<std::chrono::milliseconds> waits;

 private:
  class Noted : public c10d::Work {
   public:
    explicit Noted(Noting& group) : group_(group) {}
    bool wait(std::chrono::milliseconds timeout) override {
      group_.waits.push_back(timeout);
      return true;
    }

   private:
    Noting& group_;
  };
  c10::intrusive_ptr<c10d::Work> work(const std::vector<at::Tensor>& tensors) {
    given.insert(given.end(), tensors.begin(), tensors.end());
    return c10::make_intrusive<Noted>(*this);
  }
};

// With a time-out NCCL's wait() holds the host until the device has ended the transfer.
TEST(C10dChannel, WaitsWithATimeoutOnTheHostAlone) {
  register_fake_device();
  for (const at::Device device : {at::Device(at::kCPU), at::Device(kFakeDevice, 0)}) {
    const auto group = c10::make_intrusive<Noting>();
    const auto channel = make_c10d_channel(group, {0, 1}, device);
    const at::Tensor tensor = at::ones({2}).to(device);
    EXPECT_TRUE(channel->send({tensor, tensor}, 1)->wait(5s));
    EXPECT_TRUE(channel->receive({tensor}, 1)->wait(5s));
    ASSERT_EQ(group->waits.size(), 3U);
    for (const std::chrono::milliseconds wait : group->waits) {
      if (device.is_cpu()) {
        EXPECT_GT(wait, 4s);
        EXPECT_LE(wait, 5s + 1ms);
      } else {
        EXPECT_EQ(wait, kNoTimeout);
      }
    }
    EXPECT_EQ(channel->posting(), device.is_cpu() ? Posting::anywhere : Posting::in_order);
  }
}

TEST(C10dChannel, GivesEveryTypeToTheBackendAsItsBytes) {
  const auto group = c10::make_intrusive<Noting>();
  const auto channel = make_c10d_channel(group, {0, 1}, at::kCPU);
  for (const at::ScalarType dtype : {at::kFloat, at::kComplexFloat, at::kShort, at::kBool, at::kByte}) {
    for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{2, 3}, {}, {2, 0}}) {
      const at::Tensor tensor = at::ones(sizes, dtype);
      for (const bool sends : {true, false}) {
        group->given.clear();
        sends ? channel->send({tensor}, 1) : channel->receive({tensor}, 1);
        ASSERT_EQ(group->given.size(), 1U);
        const at::Tensor& bytes = group->given[0];
        EXPECT_EQ(bytes.scalar_type(), at::kByte);
        EXPECT_EQ(bytes.nbytes(), tensor.nbytes());
        EXPECT_EQ(bytes.const_data_ptr(), tensor.const_data_ptr());
      }
    }
  }
}

TEST(C10dChannel, GivesOneElementToTheBackendWhateverItsStride) {
  const auto group = c10::make_intrusive<Noting>();
  const auto channel = make_c10d_channel(group, {0, 1}, at::kCPU);
  channel->send({at::ones({1}).as_strided({1}, {0}), at::ones({4, 2}).t().slice(0, 0, 1).slice(1, 0, 1)}, 1);
  ASSERT_EQ(group->given.size(), 2U);
  for (const at::Tensor& bytes : group->given) EXPECT_TRUE(at::equal(bytes.view(at::kFloat), at::ones({1})));
}

}  // namespace
}  // namespace ostinato
