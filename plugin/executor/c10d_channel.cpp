// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/c10d_channel.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <cassert>

#include "plugin/executor/error.h"

namespace ostinato {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// One c10d operation for each tensor of the message.
class C10dTransfer : public Transfer {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  C10dTransfer(Works works, std::vector<at::Tensor> tensors, bool of_host)
      : works_(std::move(works)), tensors_(std::move(tensors)), of_host_(of_host) {}

  bool wait(std::chrono::nanoseconds timeout) override {
    const auto begin = Clock::now();
    try {
      for (const auto& work : works_) {
        if (!of_host_) {
          // Without a time-out a backend of an accelerator orders the current stream and returns. With one,
          // NCCL's holds the host until the device has ended the transfer (WorkNCCL::wait of torch 2.13).
          work->wait();
          continue;
        }
        const auto left = std::max<std::chrono::nanoseconds>(timeout - (Clock::now() - begin), {});
        if (!work->wait(std::chrono::ceil<std::chrono::milliseconds>(left) + 1ms)) return false;
      }
      return true;
    } catch (const std::exception& error) {
      // Backends name a time-out in words only, each in its own.
      if (Clock::now() - begin >= timeout) return false;
      throw ExecutionError(error.what());
    }
  }

  void give_up() override {
    if (!of_host_) return;
    for (const auto& work : works_) {
      try {
        work->abort();
      } catch (const std::exception&) {
        // This backend cannot: wait() goes on until the time is up.
      }
    }
  }

 private:
  Works works_;
  std::vector<at::Tensor> tensors_;
  bool of_host_;
};

class C10dChannel : public Channel {
 public:
  C10dChannel(c10::intrusive_ptr<c10d::ProcessGroup> group, std::vector<int> ranks, at::Device device,
              std::map<int, LinkGroups> links)
      : group_(std::move(group)), ranks_(std::move(ranks)), device_(device), links_(std::move(links)) {
    for (const auto& [rank, link] : links_) {
      for (const auto* one : {&link.to, &link.from}) {
        if (*one && (*one)->getSize() != 2)
          throw ExecutionError("the group of a link has " + std::to_string((*one)->getSize()) +
                               " ranks: expected 2");
      }
    }
  }

  std::unique_ptr<Transfer> send(std::vector<at::Tensor> tensors, int rank) override {
    const Way way = way_to(rank, &LinkGroups::to);
    return transfer(std::move(tensors),
                    [&](std::vector<at::Tensor>& one) { return way.group->send(one, way.rank, kTag); });
  }

  std::unique_ptr<Transfer> receive(std::vector<at::Tensor> tensors, int rank) override {
    const Way way = way_to(rank, &LinkGroups::from);
    return transfer(std::move(tensors),
                    [&](std::vector<at::Tensor>& one) { return way.group->recv(one, way.rank, kTag); });
  }

  /// Without links a pair of NCCL ranks shares one in-order stream for both directions, or all pairs of a
  /// group do.
  Posting posting() const override { return device_.is_cpu() ? Posting::anywhere : Posting::in_order; }
  at::Device device() const override { return device_; }

 private:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  struct Way {
    Group group;
    int rank;  ///< of the peer in it
  };

  Way way_to(int rank, Group LinkGroups::*direction) const {
    const auto link = links_.find(rank);
    if (link == links_.end() || !(link->second.*direction)) return {group_, ranks_[rank]};
    const Group& group = link->second.*direction;
    return {group, 1 - group->getRank()};
  }

  /// As bytes: NCCL has no complex numbers, and of integers not all.
  template <typename Issue>
  std::unique_ptr<Transfer> transfer(std::vector<at::Tensor> tensors, Issue issue) const {
    C10dTransfer::Works works;
    for (const at::Tensor& tensor : tensors) {
      assert(tensor.is_contiguous());
      std::vector<at::Tensor> one{tensor.detach().as_strided({tensor.numel()}, {1}).view(at::kByte)};
      works.push_back(issue(one));
    }
    return std::make_unique<C10dTransfer>(std::move(works), std::move(tensors), device_.is_cpu());
  }

  static constexpr int kTag = 0;  ///< one tag keeps its order; NCCL knows none
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::vector<int> ranks_;
  at::Device device_;
  std::map<int, LinkGroups> links_;
};

}  // namespace

std::unique_ptr<Channel> make_c10d_channel(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                           std::vector<int> ranks, at::Device device,
                                           std::map<int, LinkGroups> links) {
  return std::make_unique<C10dChannel>(std::move(group), std::move(ranks), device, std::move(links));
}

}  // namespace ostinato
