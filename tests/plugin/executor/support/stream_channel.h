// SPDX-License-Identifier: Apache-2.0
#pragma once
// A channel between ranks that are threads, each with a device of its own or all with the same, which treats
// streams as ProcessGroupNCCL does: a transfer runs on a stream of the channel, behind what is on the current
// one when it is issued and behind the transfers issued before it; wait() makes the current stream wait.
// Through torch's interface for devices: the fake one, or a GPU.
//
//   StreamExchange exchange(Queue::of_a_pair, 500);
//   StreamChannel channel(exchange, rank, device);
//
// Unlike NCCL's, wait() holds the host until the peer has issued its side, because nothing can spin on the
// device here.

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

#include "plugin/executor/channel.h"
#include "search/placement/placement.h"

namespace ostinato::testing {

/// What runs in order on a rank: its transfers to one peer or from it (a group for each direction: links.py),
/// those in both directions (NCCL, by default), or all of them (NCCL, initialised eagerly).
enum class Queue { of_a_direction, of_a_pair, of_all };

/// One side of one transfer.
struct StreamOp;

/// Where both sides meet; shared by all ranks. A message of floats is a task of the fake device, "0>1 7" for
/// the eighth from rank 0 to rank 1, which takes so long.
class StreamExchange {
 public:
  explicit StreamExchange(Queue queue, Nanoseconds time = 0) : queue_(queue), time_(time) {}

  std::shared_ptr<StreamOp> post(int rank, int peer, bool send, const at::Tensor& tensor);

  /// The current stream waits for its end; false where the peer does not come.
  bool wait(const StreamOp& op, std::chrono::nanoseconds timeout);

  /// Messages of floats in the order in which the rank issued them: peer, and whether it was sent.
  std::vector<std::pair<int, bool>> issued(int rank);

 private:
  using Key = std::tuple<int, int, bool>;  ///< rank; peer, or -1 for all; sends of a direction
  struct Line {
    std::optional<c10::Stream> stream;
    std::deque<std::shared_ptr<StreamOp>> ops;  ///< that have not met their other side
  };
  Key key_of(int rank, int peer, bool send) const {
    return {rank, queue_ == Queue::of_all ? -1 : peer, queue_ == Queue::of_a_direction && send};
  }
  void meet(const Key& key);
  void run(StreamOp& send, StreamOp& receive);
  void tell(const StreamOp& send, const StreamOp& receive);

  Queue queue_;
  Nanoseconds time_;
  std::mutex mutex_;
  std::condition_variable met_;
  std::map<Key, Line> lines_;
  std::map<int, std::vector<std::pair<int, bool>>> issued_;  ///< per rank
  std::map<std::pair<int, int>, int> messages_;              ///< per directed pair
};

class StreamChannel : public Channel {
 public:
  StreamChannel(StreamExchange& exchange, int rank, at::Device device)
      : exchange_(exchange), rank_(rank), device_(device) {}

  std::unique_ptr<Transfer> send(std::vector<at::Tensor> tensors, int rank) override;
  std::unique_ptr<Transfer> receive(std::vector<at::Tensor> tensors, int rank) override;
  Posting posting() const override { return Posting::in_order; }
  at::Device device() const override { return device_; }

 private:
  std::unique_ptr<Transfer> post(std::vector<at::Tensor> tensors, int rank, bool send);

  StreamExchange& exchange_;
  int rank_;
  at::Device device_;
};

}  // namespace ostinato::testing
