// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks as threads: a channel between them with nothing buffered. A send completes when its receive is there
// and the bytes are copied, not before.
//
//   Exchange exchange(ranks);
//   ThreadChannel channel(exchange, rank, Blocking::no);

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "plugin/executor/channel.h"

namespace ostinato::testing {

struct Pending;

/// Where sends and receives meet; shared by all ranks.
class Exchange {
 public:
  std::shared_ptr<Pending> post(int from, int to, const at::Tensor& tensor, bool send);
  bool wait(const Pending& pending, std::chrono::nanoseconds timeout);

 private:
  struct Pair {
    std::deque<std::shared_ptr<Pending>> sends, receives;
  };
  std::mutex mutex_;
  std::condition_variable met_;
  std::map<std::pair<int, int>, Pair> pairs_;
};

/// yes: send() and receive() return only when the partner has arrived, and nothing is posted ahead: the model
/// of deadlock.h, for real.
enum class Blocking { no, yes };

class ThreadChannel : public Channel {
 public:
  ThreadChannel(Exchange& exchange, int rank, Blocking blocking)
      : exchange_(exchange), rank_(rank), blocking_(blocking) {}

  std::unique_ptr<Transfer> send(std::vector<at::Tensor> tensors, int rank) override;
  std::unique_ptr<Transfer> receive(std::vector<at::Tensor> tensors, int rank) override;
  Posting posting() const override {
    return blocking_ == Blocking::no ? Posting::anywhere : Posting::in_place;
  }
  at::Device device() const override { return at::kCPU; }

 private:
  std::unique_ptr<Transfer> post(int from, int to, const std::vector<at::Tensor>& tensors, bool send);

  Exchange& exchange_;
  int rank_;
  Blocking blocking_;
};

}  // namespace ostinato::testing
