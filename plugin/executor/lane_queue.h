// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a rank computes beside its list: the stages on one of its lanes, one after the other.
//
//   LaneQueue network(channel.device());
//   auto exchange = network.run([&] { outputs = stage.forward(0, std::move(inputs)); });
//   ...                                          // the rank goes on with its list
//   network.wait(exchange);                      // before it takes `outputs`; throws what the stage threw
//
// On a CPU a separate thread computes, with the caller's grad mode and autocast. On an accelerator the caller
// issues the work on a stream beside its own, and wait() lets its stream wait for that.

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "plugin/executor/side_stream.h"

namespace ostinato {

class LaneQueue {
 public:
  using Ended = std::shared_future<void>;

  explicit LaneQueue(at::Device device);

  /// Waits for what is at work, and begins nothing more.
  ~LaneQueue();

  /// What another queue is at. `made`: recorded behind it; null on the CPU.
  struct Before {
    Ended ended;
    const c10::Event* made;
  };

  /// `work` runs after all that was given before, and after `before`; it throws what that has thrown.
  /// `inputs`: what of it the caller's stream has made.
  Ended run(std::function<void()> work, const std::vector<at::Tensor>& inputs,
            std::vector<Before> before = {});

  /// The caller may take what `work` has made: `outputs`. `made`: recorded behind it; null on the CPU.
  void wait(const Ended& ended, const std::function<std::vector<at::Tensor>()>& outputs,
            const c10::Event* made);

 private:
  void serve();

  SideStream stream_;
  bool threaded_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> waiting_;
  bool closing_ = false;
  std::thread thread_;  // last: uses the rest
};

}  // namespace ostinato
