// SPDX-License-Identifier: Apache-2.0
// ZB-V, written pass by pass: the V of two chunks per device with a split backward, in the memory of 1F1B.
//
// A rank warms up until the first micro-batch has come back to it on chunk 1, then runs forward, input and
// weight half of both chunks by turns, and at the end lets the weight halves of the last micro-batches wait.

#include <algorithm>

#include "search/named/rank_order.h"
#include "search/named/schedules.h"

namespace ostinato {
namespace {

class ZbVRank {
 public:
  ZbVRank(RankOrder& rank, int r, int depth, int micro_batches)
      : rank_(rank), r_(r), depth_(depth), micro_batches_(std::max(micro_batches, 2 * depth - 1)) {}

  void run() {
    warm_up();
    while (forwards_[1] < micro_batches_) {
      if (forwards_[0] < micro_batches_) forward(0);
      input(0), weight(0);
      forward(1), input(1), weight(1);
    }
    for (int k = 0; k < r_; ++k) input(0), input(1);
    while (inputs_[0] < micro_batches_) input(0), weight(0);
    for (const int chunk : {1, 0}) {
      while (weights_[chunk] < micro_batches_) weight(chunk);
    }
  }

 private:
  void warm_up() {
    for (int k = 0; k < 2 * (depth_ - r_) - 1; ++k) forward(0);
    for (int k = 0; k < r_; ++k) forward(1), forward(0);
    for (int k = r_; k < depth_; ++k) forward(1), input(1), weight(1);
  }

  void forward(int chunk) { rank_.forward(chunk, forwards_[chunk]++); }
  void input(int chunk) { rank_.backward(chunk, inputs_[chunk]++); }
  void weight(int chunk) { rank_.weight(chunk, weights_[chunk]++); }

  RankOrder& rank_;
  int r_;
  int depth_;
  int micro_batches_;  ///< written for at least 2 D - 1; RankOrder leaves out what does not exist
  int forwards_[2] = {0, 0};
  int inputs_[2] = {0, 0};
  int weights_[2] = {0, 0};
};

}  // namespace

Orders zb_v_orders(const Chain& chain, const Placement& placement, int micro_batches) {
  ChainOrders orders(chain, placement, micro_batches);
  for (int r = 0; r < chain.depth(); ++r) ZbVRank(orders.rank(r), r, chain.depth(), micro_batches).run();
  return orders.take();
}

}  // namespace ostinato
