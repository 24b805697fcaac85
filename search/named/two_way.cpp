// SPDX-License-Identifier: Apache-2.0
// The schedules of two chains in opposite directions, and the V that is one of them cut in half.

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "search/named/rank_order.h"
#include "search/named/schedules.h"

namespace ostinato {
namespace {

/// A pass of Chimera on one rank, in slots of one pass each.
struct Slot {
  long time = 0;
  int chunk = 0;
  int micro_batch = 0;
  bool forward = true;

  friend auto operator<=>(const Slot&, const Slot&) = default;
};

/// The order of one rank under DualPipe, as counts of consecutive passes by kind. The counts are for half the
/// ranks: rank r of `half` and its mirror do the same with their chunks exchanged.
class DualPipeRank {
 public:
  DualPipeRank(RankOrder& rank, int r, int half, int micro_batches)
      : rank_(rank), r_(r), half_(half), micro_batches_(std::max(micro_batches, 2 * half)) {}

  void run() {
    const int behind = half_ - 1 - r_;  // ranks between this one and the turn
    for (int k = 0; k < 2 * behind; ++k) forward(0);
    for (int k = 0; k <= r_; ++k) {
      forward(0);
      forward(1);
    }
    for (int k = 0; k < behind; ++k) {
      input_half(1);
      oldest_weight();
      forward(1);
    }
    for (int k = 0; k < micro_batches_ - 2 * half_ + r_ + 1; ++k) {
      together(0, 1);
      together(1, 0);
    }
    for (int k = 0; k < behind; ++k) {
      backward(1);
      together(1, 0);
    }
    drain(behind);
  }

 private:
  /// The last backwards: in their second half the weight halves wait, and fill what would be idle.
  void drain(int behind) {
    const int turns = 2 * (r_ + 1);
    for (int k = 0; k < turns; ++k) {
      const int chunk = 1 - k % 2;
      k <= r_ ? backward(chunk) : input_half(chunk);
    }
    for (int k = 0; k < behind; ++k) {
      oldest_weight();
      input_half(0);
    }
    while (!waiting_.empty()) oldest_weight();
  }

  void forward(int chunk) { rank_.forward(chunk, forwards_[chunk]++); }
  void backward(int chunk) { rank_.whole_backward(chunk, backwards_[chunk]++); }
  void together(int ahead, int back) {
    rank_.together({ahead, forwards_[ahead]++}, {back, backwards_[back]++});
  }
  void input_half(int chunk) {
    waiting_.emplace_back(chunk, backwards_[chunk]);
    rank_.backward(chunk, backwards_[chunk]++);
  }
  void oldest_weight() {
    if (waiting_.empty()) return;
    rank_.weight(waiting_.front().first, waiting_.front().second);
    waiting_.pop_front();
  }

  RankOrder& rank_;
  int r_;
  int half_;
  int micro_batches_;  ///< written for at least two a rank; RankOrder leaves out what does not exist
  int forwards_[2] = {0, 0};
  int backwards_[2] = {0, 0};
  std::deque<std::pair<int, int>> waiting_;  ///< chunk and micro-batch of weight halves
};

}  // namespace

// In slots of one pass, a forward goes one rank a slot and a micro-batch follows every second one; each
// direction leaves the other every second slot. D / 2 micro-batches of each direction make a unit of 2 D
// slots, and the next unit's forwards fill the slots that its backwards leave.
Orders chimera_orders(const TwoWay& chains, const Placement& placement, int micro_batches) {
  const int depth = chains.depth();
  ChainOrders orders(chains, placement, micro_batches);
  for (int r = 0; r < depth; ++r) {
    const int first = std::min(r, depth - 1 - r);
    std::vector<Slot> slots;
    for (int i = 0; i < micro_batches; ++i) {
      const long unit = static_cast<long>(i / (depth / 2)) * 2 * depth + 2 * (i % (depth / 2));
      for (const int chunk : {0, 1}) {
        const int place = chunk == 0 ? first : depth - 1 - first;
        slots.push_back({unit + place, chunk, i, true});
        slots.push_back({unit + 2 * depth - 1 - place, chunk, i, false});
      }
    }
    std::sort(slots.begin(), slots.end());
    for (const Slot& slot : slots) {
      slot.forward ? orders.rank(r).forward(slot.chunk, slot.micro_batch)
                   : orders.rank(r).whole_backward(slot.chunk, slot.micro_batch);
    }
  }
  return orders.take();
}

Orders dual_pipe_orders(const TwoWay& chains, const Placement& placement, int micro_batches) {
  const int depth = chains.depth();
  ChainOrders orders(chains, placement, micro_batches);
  for (int r = 0; r < depth; ++r)
    DualPipeRank(orders.rank(r), std::min(r, depth - 1 - r), depth / 2, micro_batches).run();
  return orders.take();
}

Orders dual_pipe_v_orders(const Chain& chain, const Placement& placement, int micro_batches) {
  ChainOrders orders(chain, placement, micro_batches);
  for (int r = 0; r < chain.depth(); ++r) DualPipeRank(orders.rank(r), r, chain.depth(), micro_batches).run();
  return orders.take();
}

}  // namespace ostinato
