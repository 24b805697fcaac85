// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums and exchanges between the ranks that run a stage together, where all of them are on one host.
//
//   NearRanks ranks(make_host_channel(...), rank, 4, 300s);    // on each of the four; waits for the rest
//   if (ranks.are_near()) {                                    // the same answer everywhere is the caller's
//     ranks.sum(gradient);                                     // in place; the same bits on every rank
//     std::vector<at::Tensor> parts = ranks.gather(part);
//   }
//
// Every rank hands its tensor to every other one through their mailboxes (host_channel.h) and adds what comes
// in the order of the ranks. For D ranks each copies D - 1 times the bytes in and out, where a ring copies
// twice the bytes, in 2 (D - 1) turns: what lies between stages is small and D is at most some cores of a
// host, so it is turns that cost. With gloo each of them wakes a thread that wakes the caller: a sum of 256
// KiB between two ranks that come from a computation takes it 2 ms and this 0.2 ms (docs/plugin.md).
//
// Tensors of any size: pieces of the size of a slot follow each other. All ranks must make the same calls,
// with equal shapes and dtypes, each on one thread.

#include <ATen/core/Tensor.h>

#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "plugin/executor/channel.h"

namespace ostinato {

class NearRanks {
 public:
  /// `rank` of `count`; these are the channel's. Throws TimeoutError where a rank does not come.
  NearRanks(std::unique_ptr<Channel> channel, int rank, int count, std::chrono::nanoseconds timeout);
  ~NearRanks();

  /// Whether every other rank is. Where not, nothing else may be called.
  bool are_near() const;

  // Tensors are on the CPU and contiguous; no gradient is recorded. Throws TimeoutError with the rank that
  // was waited for, ExecutionError where its process has ended. The ranks are out of step then.

  /// Over the ranks, in place.
  void sum(const at::Tensor& tensor);

  /// Every rank's tensor, by rank.
  std::vector<at::Tensor> gather(const at::Tensor& tensor);

  /// Rank `from`'s, in place on the other ranks.
  void broadcast(const at::Tensor& tensor, int from);

 private:
  void send(const at::Tensor& piece, int to);
  void receive(const at::Tensor& piece, int from);
  void complete(Transfer& transfer, int with);
  at::Tensor buffer(const at::Tensor& piece, int from) const;

  std::unique_ptr<Channel> channel_;
  int rank_;
  std::chrono::nanoseconds timeout_;
  std::vector<std::deque<std::unique_ptr<Transfer>>> sends_;  ///< per rank: not known to be over
  std::vector<at::Tensor> buffers_;  ///< per rank: bytes that a piece is received into
};

}  // namespace ostinato
