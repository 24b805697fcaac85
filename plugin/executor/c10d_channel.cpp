#include "plugin/executor/c10d_channel.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "plugin/executor/error.h"

namespace ostinato {
namespace {

using Clock = std::chrono::steady_clock;

class C10dTransfer : public Transfer {
 public:
  C10dTransfer(c10::intrusive_ptr<c10d::Work> work, at::Tensor tensor)
      : work_(std::move(work)), tensor_(std::move(tensor)) {}

  bool wait(std::chrono::nanoseconds timeout) override {
    // A backend of an accelerator only orders its stream here and returns; the host goes on issuing work.
    const auto begin = Clock::now();
    const auto limit = std::chrono::ceil<std::chrono::milliseconds>(timeout);
    try {
      return work_->wait(limit);
    } catch (const std::exception& error) {
      // Backends name a time-out in words only, each in its own.
      if (Clock::now() - begin >= timeout) return false;
      throw ExecutionError(error.what());
    }
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  at::Tensor tensor_;
};

class C10dChannel : public Channel {
 public:
  C10dChannel(c10::intrusive_ptr<c10d::ProcessGroup> group, std::vector<int> ranks, at::Device device)
      : group_(std::move(group)), ranks_(std::move(ranks)), device_(device) {}

  std::unique_ptr<Transfer> send(const at::Tensor& tensor, int rank) override {
    std::vector<at::Tensor> tensors{tensor};
    return std::make_unique<C10dTransfer>(group_->send(tensors, ranks_[rank], kTag), tensor);
  }

  std::unique_ptr<Transfer> receive(const at::Tensor& tensor, int rank) override {
    std::vector<at::Tensor> tensors{tensor};
    return std::make_unique<C10dTransfer>(group_->recv(tensors, ranks_[rank], kTag), tensor);
  }

  bool posts_ahead() const override { return device_.is_cpu(); }
  at::Device device() const override { return device_; }

 private:
  static constexpr int kTag = 0;  ///< one tag keeps its order; NCCL knows none
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::vector<int> ranks_;
  at::Device device_;
};

}  // namespace

std::unique_ptr<Channel> make_c10d_channel(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                           std::vector<int> ranks, at::Device device) {
  return std::make_unique<C10dChannel>(std::move(group), std::move(ranks), device);
}

}  // namespace ostinato
