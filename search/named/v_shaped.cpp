// SPDX-License-Identifier: Apache-2.0
// V-Half and V-Min, the V with two chunks per device and a split backward, from their building block.
//
// A building block says at which time each rank runs the six passes of one micro-batch, for passes of one
// unit; the next micro-batch follows 6 units later. Along the ranks the four passes of a chain F0 (down), F1
// (up), I1 (down), I0 (up) move by a fixed number of units a rank, which decides the memory: a chunk lives
// for the sum of these steps times D. Source: Pipeline Parallelism with Controllable Memory (Qi et al.,
// NeurIPS 2024), sections 3 and 4.

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "search/named/rank_order.h"
#include "search/named/schedules.h"

namespace ostinato {
namespace {

constexpr int kPeriod = 6;  ///< two forwards, two input halves, two weight halves

/// Units from one rank to the next, in the order of the chain.
struct Steps {
  int f0, f1, i1, i0;
};

/// Start of the passes of micro-batch 0 on one rank; [0] of chunk 0, [1] of chunk 1.
struct RankBlock {
  std::array<int, 2> forward, input, weight;
};

using BuildingBlock = std::vector<RankBlock>;  ///< by rank

int modulo(int a) { return (a % kPeriod + kPeriod) % kPeriod; }

int floor_div(int a) { return (a - modulo(a)) / kPeriod; }

/// The first time >= `from` that is `phase` modulo the period.
int first_at(int phase, int from) { return from + modulo(phase - from); }

/// Puts the weight halves into the two phases that are left, so that they come early. False if two passes
/// share a phase.
bool add_weights(RankBlock& block) {
  std::array<bool, kPeriod> used{};
  for (const int time : {block.forward[0], block.forward[1], block.input[0], block.input[1]}) {
    if (std::exchange(used[modulo(time)], true)) return false;
  }
  const auto left = std::find(used.begin(), used.end(), false);
  const int a = static_cast<int>(left - used.begin());
  const int b = static_cast<int>(std::find(left + 1, used.end(), false) - used.begin());
  const std::array<int, 2> straight = {first_at(a, block.input[0] + 1), first_at(b, block.input[1] + 1)};
  const std::array<int, 2> crossed = {first_at(b, block.input[0] + 1), first_at(a, block.input[1] + 1)};
  block.weight = straight[0] + straight[1] <= crossed[0] + crossed[1] ? straight : crossed;
  return true;
}

/// The block whose chain pauses gaps[0..2] units at its three turns; nullopt if two passes of a rank collide.
std::optional<BuildingBlock> building_block(int depth, const Steps& steps, const std::array<int, 3>& gaps) {
  const int last = depth - 1;
  const int f1 = steps.f0 * last + 1 + gaps[0];
  const int i1 = f1 + steps.f1 * last + 1 + gaps[1];
  const int i0 = i1 + steps.i1 * last + 1 + gaps[2];
  BuildingBlock block(depth);
  for (int r = 0; r < depth; ++r) {
    block[r].forward = {steps.f0 * r, f1 + steps.f1 * (last - r)};
    block[r].input = {i0 + steps.i0 * (last - r), i1 + steps.i1 * r};
    if (!add_weights(block[r])) return std::nullopt;
  }
  return block;
}

/// Chunks that the busiest rank holds at once when blocks follow each other for ever.
int peak_chunks(const BuildingBlock& block) {
  int peak = 0;
  for (const RankBlock& rank : block) {
    for (int time = 0; time < kPeriod; ++time) {
      int held = 0;
      for (const int c : {0, 1})
        held += floor_div(time - rank.forward[c]) - floor_div(time - rank.weight[c] - 1);
      peak = std::max(peak, held);
    }
  }
  return peak;
}

/// The block with the least memory; among those the shortest. Pauses of less than a period reach every phase.
std::pair<BuildingBlock, int> best_block(int depth, const Steps& steps) {
  BuildingBlock best;
  std::pair<int, int> best_cost{};
  for (int code = 0; code < kPeriod * kPeriod * kPeriod; ++code) {
    const std::array<int, 3> gaps = {code / kPeriod / kPeriod, code / kPeriod % kPeriod, code % kPeriod};
    auto block = building_block(depth, steps, gaps);
    if (!block) continue;
    const std::pair cost{peak_chunks(*block), gaps[0] + gaps[1] + gaps[2]};
    if (best.empty() || cost < best_cost) {
      best = std::move(*block);
      best_cost = cost;
    }
  }
  return {std::move(best), best_cost.first};
}

/// Runs N building blocks with the bubbles of warm-up and cool-down squeezed out: unit by unit every rank
/// takes its next forward or input half in the block's order of time as soon as its input is there, else a
/// weight half, within the block's own memory. It cannot get stuck: the pass that is next in the block's time
/// has all it needs.
class Squeeze {
 public:
  Squeeze(const Chain& chain, const Placement& placement, int micro_batches, BuildingBlock block, int room)
      : orders_(chain, placement, micro_batches),
        depth_(chain.depth()),
        micro_batches_(micro_batches),
        room_(room),
        block_(std::move(block)),
        done_(depth_) {}

  Orders run() {
    for (int left = 6 * depth_ * micro_batches_; left > 0;) {
      const std::vector<Done> before = done_;
      for (int r = 0; r < depth_; ++r) left -= advance(r, before) ? 1 : 0;
    }
    return orders_.take();
  }

 private:
  /// Micro-batches that have run a pass, by chunk: each pass runs them in order.
  struct Done {
    std::array<int, 2> forward{}, input{}, weight{};

    int held() const { return forward[0] + forward[1] - weight[0] - weight[1]; }
  };

  /// Runs one pass of rank r; `before` is what had ended when this unit of time began.
  bool advance(int r, const std::vector<Done>& before) {
    Done& done = done_[r];
    const int f = earlier(block_[r].forward, done.forward);
    const bool forward = f >= 0 && done.held() < room_ && done.forward[f] < forwards_ready(r, f, before);
    int i = -1;
    for (const int c : {1, 0}) {
      if (done.input[c] >= inputs_ready(r, c, before)) continue;
      if (i < 0 || key(block_[r].input, done.input, c) < key(block_[r].input, done.input, i)) i = c;
    }
    if (i >= 0 &&
        (!forward || key(block_[r].input, done.input, i) < key(block_[r].forward, done.forward, f))) {
      orders_.rank(r).backward(i, done.input[i]++);
      return true;
    }
    if (forward) {
      orders_.rank(r).forward(f, done.forward[f]++);
      return true;
    }
    return advance_weight(r);
  }

  bool advance_weight(int r) {
    Done& done = done_[r];
    int w = -1;
    for (const int c : {0, 1}) {
      if (done.weight[c] >= done.input[c]) continue;
      if (w < 0 || key(block_[r].weight, done.weight, c) < key(block_[r].weight, done.weight, w)) w = c;
    }
    if (w < 0) return false;
    orders_.rank(r).weight(w, done.weight[w]++);
    return true;
  }

  static int key(const std::array<int, 2>& start, const std::array<int, 2>& done, int c) {
    return start[c] + kPeriod * done[c];
  }

  /// The chunk whose next pass is earlier in the block's time; -1 when both have run all micro-batches.
  int earlier(const std::array<int, 2>& start, const std::array<int, 2>& done) const {
    if (done[0] >= micro_batches_) return done[1] >= micro_batches_ ? -1 : 1;
    if (done[1] >= micro_batches_) return 0;
    return key(start, done, 0) < key(start, done, 1) ? 0 : 1;
  }

  /// Micro-batches whose input for the forward of chunk c has arrived at rank r.
  int forwards_ready(int r, int c, const std::vector<Done>& before) const {
    if (c == 0) return r == 0 ? micro_batches_ : before[r - 1].forward[0];
    return r == depth_ - 1 ? before[r].forward[0] : before[r + 1].forward[1];
  }

  /// Micro-batches whose gradient for the backward of chunk c has arrived at rank r.
  int inputs_ready(int r, int c, const std::vector<Done>& before) const {
    if (c == 1) return r == 0 ? before[r].forward[1] : before[r - 1].input[1];
    return r == depth_ - 1 ? before[r].input[1] : before[r + 1].input[0];
  }

  ChainOrders orders_;
  int depth_;
  int micro_batches_;
  int room_;
  BuildingBlock block_;
  std::vector<Done> done_;
};

Orders v_shaped_orders(const Chain& chain, const Placement& placement, int micro_batches,
                       const Steps& steps) {
  auto [block, room] = best_block(chain.depth(), steps);
  return Squeeze(chain, placement, micro_batches, std::move(block), room).run();
}

}  // namespace

// The steps add up to 6 and 4 units a rank, which is D and 2 D / 3 chunks of 6 units; within that sum, their
// differences decide that no two passes meet modulo the period, on any rank.

Orders v_half_orders(const Chain& chain, const Placement& placement, int micro_batches) {
  return v_shaped_orders(chain, placement, micro_batches, {2, 1, 2, 1});
}

Orders v_min_orders(const Chain& chain, const Placement& placement, int micro_batches) {
  return v_shaped_orders(chain, placement, micro_batches, {1, 1, 1, 1});
}

}  // namespace ostinato
