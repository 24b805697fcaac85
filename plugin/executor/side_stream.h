// SPDX-License-Identifier: Apache-2.0
#pragma once
// A stream of an accelerator beside the one that computes. Transfers are issued on side streams, so that each
// waits for what it needs and not for everything that was issued before it.
//
//   SideStream stream(channel.device());
//   stream.after(event);                   // what the transfer needs
//   {
//     const auto here = stream.enter();     // it is the thread's current stream
//     transfer = channel.send(tensors, peer);
//   }
//   transfer->wait(timeout);               // of the computing stream, which is current again
//
// A rank has one for each peer and direction. A send waits for the compute that made its tensor; a receive
// for the last one that reads its buffer; a compute for the receives that it consumes. Nothing runs there but
// these waits, copies of words that announce shapes, and what a channel may put there itself.
//
// They only take waits away: whatever runs on the device was issued by the host in an order that is free of
// deadlock when everything blocks (Posting), so no two streams can wait for each other, even where the
// device's driver has fewer queues than there are streams, or a process group one for all peers.
//
// Through torch's interface for devices: one source for all accelerators. On the CPU one is nothing, and
// costs nothing.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <chrono>
#include <optional>

namespace ostinato {

class SideStream {
 public:
  /// Throws c10::Error where the device makes no streams. A device without an index is the current one.
  explicit SideStream(at::Device device);

  /// What is issued here from now on runs after what the event was recorded behind. Null: nothing to wait
  /// for.
  void after(const c10::Event* event);

  /// The same for all that is on the thread's current stream by now.
  void after_current();

  /// Makes it current until the result is destroyed.
  c10::OptionalStreamGuard enter() const { return c10::OptionalStreamGuard(stream_); }

  /// The reverse of after(): what is issued on the thread's current stream from now on runs after the event.
  void before_current(const c10::Event* event) const;

  /// The memory of a tensor that another stream has made is read here: the allocator must not give it away
  /// before what is issued here by the time it is let go has ended.
  void takes(const at::Tensor& tensor) const;

  /// The memory of a tensor that was made here is let go by the thread's current stream: the allocator must
  /// not give it away before what is on that one by then has ended.
  void let_go_by_current(const at::Tensor& tensor) const;

  /// The host waits until everything issued here has ended; false when the time is up.
  bool wait(std::chrono::nanoseconds timeout);

 private:
  std::optional<c10::Stream> stream_;  ///< none on the CPU
  std::optional<c10::Event> event_;    ///< for waits of its own
};

}  // namespace ostinato
