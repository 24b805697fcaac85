#pragma once
// How tensors travel between ranks. c10d_channel.h carries them over a process group; tests carry them
// between threads.
//
//   auto sent = channel.send(tensor, 1);          // returns at once
//   auto arrived = channel.receive(buffer, 1);
//   if (!arrived->wait(std::chrono::seconds(300))) ...
//
// Between a directed pair of ranks the k-th send meets the k-th receive. Nothing else is promised: a send may
// need its receive to complete (rendezvous).

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>

namespace ostinato {

/// One send or receive on its way. It keeps its tensor alive. Destroying it early leaves the channel out of
/// step.
class Transfer {
 public:
  virtual ~Transfer() = default;

  /// True when the tensor may be used (a receive) or changed (a send) by what follows on this thread and its
  /// stream; false when the time is up. Throws ExecutionError where the peer is gone.
  virtual bool wait(std::chrono::nanoseconds timeout) = 0;
};

class Channel {
 public:
  virtual ~Channel() = default;

  /// `tensor` must be contiguous and is not copied. `rank` is a pipeline rank (a device index of the
  /// placement).
  virtual std::unique_ptr<Transfer> send(const at::Tensor& tensor, int rank) = 0;
  virtual std::unique_ptr<Transfer> receive(const at::Tensor& tensor, int rank) = 0;

  /// May a receive be posted ahead of sends that stand before it in the program? Not where a pair of ranks
  /// shares one in-order stream for both directions (NCCL): there the program's global order must be kept.
  virtual bool posts_ahead() const = 0;

  /// Where received tensors must live.
  virtual at::Device device() const = 0;
};

}  // namespace ostinato
