// SPDX-License-Identifier: Apache-2.0
#include "tests/plugin/executor/support/thread_channel.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace ostinato::testing {

struct Pending {
  at::Tensor tensor;
  bool done = false;
};

namespace {

class ThreadTransfer : public Transfer {
 public:
  ThreadTransfer(Exchange& exchange, std::vector<std::shared_ptr<Pending>> pending)
      : exchange_(exchange), pending_(std::move(pending)) {}
  bool wait(std::chrono::nanoseconds timeout) override {
    return std::all_of(pending_.begin(), pending_.end(),
                       [&](const auto& p) { return exchange_.wait(*p, timeout); });
  }

 private:
  Exchange& exchange_;
  std::vector<std::shared_ptr<Pending>> pending_;  ///< one for each tensor of the message
};

void hand_over(const at::Tensor& from, const at::Tensor& to) {
  if (from.nbytes() != to.nbytes() || !from.is_contiguous())
    throw std::logic_error("the message does not fit");
  std::copy_n(static_cast<const std::byte*>(from.const_data_ptr()), from.nbytes(),
              static_cast<std::byte*>(to.mutable_data_ptr()));
}

}  // namespace

std::shared_ptr<Pending> Exchange::post(int from, int to, const at::Tensor& tensor, bool send) {
  const std::lock_guard lock(mutex_);
  Pair& pair = pairs_[{from, to}];
  auto pending = std::make_shared<Pending>(Pending{tensor});
  (send ? pair.sends : pair.receives).push_back(pending);
  while (!pair.sends.empty() && !pair.receives.empty()) {
    hand_over(pair.sends.front()->tensor, pair.receives.front()->tensor);
    for (auto* queue : {&pair.sends, &pair.receives}) {
      queue->front()->done = true;
      queue->front()->tensor.reset();
      queue->pop_front();
    }
    met_.notify_all();
  }
  return pending;
}

bool Exchange::wait(const Pending& pending, std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  return met_.wait_for(lock, timeout, [&] { return pending.done; });
}

std::unique_ptr<Transfer> ThreadChannel::post(int from, int to, const std::vector<at::Tensor>& tensors,
                                              bool send) {
  std::vector<std::shared_ptr<Pending>> pending;
  for (const at::Tensor& tensor : tensors) {
    pending.push_back(exchange_.post(from, to, tensor, send));
    if (blocking_ == Blocking::yes && !exchange_.wait(*pending.back(), std::chrono::seconds(60)))
      throw std::logic_error("blocked for ever");
  }
  return std::make_unique<ThreadTransfer>(exchange_, std::move(pending));
}

std::unique_ptr<Transfer> ThreadChannel::send(std::vector<at::Tensor> tensors, int rank) {
  return post(rank_, rank, tensors, true);
}

std::unique_ptr<Transfer> ThreadChannel::receive(std::vector<at::Tensor> tensors, int rank) {
  return post(rank, rank_, tensors, false);
}

}  // namespace ostinato::testing
