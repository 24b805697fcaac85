// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writing down the order of one rank of a chain, or of two chains in opposite directions, pass by pass. A
// pass of a stage in parts is its parts one after the other, each on its lane.
//
//   ChainOrders orders(chain, placement, 8);
//   orders.rank(0).forward(chunk, micro_batch);
//   return orders.take();

#include <vector>

#include "search/named/chain.h"
#include "search/plan/orders.h"

namespace ostinato {

/// Appends passes to one rank's sequence. A micro-batch that does not exist is left out, so that a schedule
/// which is published for multiples of something can be written for the next multiple: leaving steps out of
/// orders that can run leaves orders that can run.
class RankOrder {
 public:
  RankOrder(std::vector<const ChainPlace*> by_chunk, int micro_batches)
      : stages_(std::move(by_chunk)), micro_batches_(micro_batches) {}

  void forward(int chunk, int micro_batch);
  void backward(int chunk, int micro_batch);
  /// The weight half; nothing where the backward is whole.
  void weight(int chunk, int micro_batch);
  /// The whole backward, or both of its halves at once.
  void whole_backward(int chunk, int micro_batch);

  struct Pass {
    int chunk = 0;
    int micro_batch = 0;
  };
  /// A forward and a whole backward that overlap: the first part of each, the second part of each, ... As
  /// their parts come in opposite order, one computes while the other is on its lane. Without lanes: one
  /// after the other. Source: DualPipe's overlapped chunks (arXiv 2412.19437, figure 4).
  void together(Pass forward, Pass backward);

  std::vector<Step> take() { return std::move(steps_); }

 private:
  void add(int block, int micro_batch);
  /// The part that a backward runs as its `k`-th, and its weight half.
  void backward_part(int chunk, std::size_t k, int micro_batch);

  std::vector<const ChainPlace*> stages_;  ///< by chunk
  int micro_batches_;
  std::vector<Step> steps_;
};

/// One RankOrder a rank; devices that run no stage get an empty sequence.
class ChainOrders {
 public:
  ChainOrders(const Chain& chain, const Placement& placement, int micro_batches);
  /// Ranks follow the chain down. Chunk 0 of a rank is the stage of the chain that reaches it first (the
  /// chain down in the first half of the ranks, the one up in the second), chunk 1 the other chain's stage.
  ChainOrders(const TwoWay& chains, const Placement& placement, int micro_batches);

  RankOrder& rank(int r) { return ranks_[r]; }
  Orders take();

 private:
  const Placement& placement_;
  std::vector<RankOrder> ranks_;
};

}  // namespace ostinato
