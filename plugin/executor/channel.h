// SPDX-License-Identifier: Apache-2.0
#pragma once
// How messages travel between ranks. c10d_channel.h carries them over a process group, host_channel.h through
// the memory of one host; tests carry them between threads.
//
//   channel.open({{1, 4}}, timeout);              // once; rank 1 does the same
//   auto sent = channel.send({tensor}, 1);        // returns at once
//   auto arrived = channel.receive({buffer}, 1);
//   if (!arrived->wait(std::chrono::seconds(300))) ...
//
// Between a directed pair of ranks the k-th send meets the k-th receive; their tensors have equal bytes, one
// by one. Nothing else is promised: a send may need its receive to complete (rendezvous).
//
// On an accelerator all of this only issues work. A transfer begins when what is on the current stream by
// then has ended (side_stream.h is that stream), and wait() makes the stream that is current there wait for
// its end.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <map>
#include <memory>
#include <vector>

#include "plugin/executor/itinerary.h"

namespace ostinato {

/// One message on its way. It keeps its tensors alive as long as they are needed. Destroying it early leaves
/// the channel out of step.
class Transfer {
 public:
  virtual ~Transfer() = default;

  /// True when the tensors may be used (a receive) or changed (a send) by what follows on this thread and its
  /// stream; false when the time is up. Throws ExecutionError where the peer is gone. On an accelerator it
  /// returns at once, and true.
  virtual bool wait(std::chrono::nanoseconds timeout) = 0;

  /// From another thread: wait() need not go on, and returns false or throws soon, where the channel can do
  /// that.
  virtual void give_up() {}
};

class Channel {
 public:
  virtual ~Channel() = default;

  /// Before the first transfer, on all ranks: whom there will be transfers with, and how many messages to
  /// each can be on their way at once. May wait for these ranks. Throws TimeoutError where one does not come.
  virtual void open(const std::map<int, int>& /*messages*/, std::chrono::nanoseconds /*timeout*/) {}

  /// One message. Its tensors must be contiguous, and not changed before the transfer is over. `rank` is a
  /// pipeline rank (a device index of the placement).
  virtual std::unique_ptr<Transfer> send(std::vector<at::Tensor> tensors, int rank) = 0;
  virtual std::unique_ptr<Transfer> receive(std::vector<at::Tensor> tensors, int rank) = 0;

  /// Once open: do messages of this many bytes, to this rank and from it, go through the memory of one host?
  virtual bool is_near(int /*rank*/, std::int64_t /*bytes*/) const { return false; }

  /// What a receive may be posted ahead of.
  virtual Posting posting() const = 0;

  /// Where received tensors must live.
  virtual at::Device device() const = 0;
};

}  // namespace ostinato
