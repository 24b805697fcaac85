// SPDX-License-Identifier: Apache-2.0
// The automatic schedule of Zero Bubble (Qi et al., ICLR 2024, arXiv 2401.10241, section 3.1, written from
// its description): one pass over the rounds of 1F1B with the real times, in which weight halves fill gaps
// and free memory. One chunk per device, split backward.
//
// 1. warm_up(): each rank runs one forward, then as many more as have time and room until its first input
//    half can begin, at least one more than the next rank; then every rank its first input half.
// 2. Rounds, as in 1F1B: a forward on each rank that wants one, then an input half. Weight halves go first
//    where memory lacks (make_room()) and where the rank would wait (fill_gap()).
// Three questions that the paper answers by trying both are the eight variants; the one with the shortest
// span wins. Each costs O(ranks * micro-batches), apart from the look for the rank that idles most.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "search/named/chain.h"
#include "search/named/rank_order.h"
#include "search/named/schedules.h"

namespace ostinato {
namespace {

/// What the heuristic knows of a rank.
struct ZeroBubbleRank {
  Nanoseconds forward = 0, input = 0, weight = 0;
  Nanoseconds from_before = 0;  ///< transfer of an activation from the rank before
  Nanoseconds from_after = 0;   ///< transfer of a gradient from the rank after
  Bytes taken = 0;              ///< by a forward
  Bytes input_change = 0;       ///< by an input half, mostly 0 or less
  Bytes weight_change = 0;      ///< by a weight half, mostly less than 0
};

enum class ZeroBubblePass { forward, input, weight };

/// The passes of one rank; the i-th of a kind is for micro-batch i.
using ZeroBubbleOrder = std::vector<ZeroBubblePass>;

/// The three questions that the paper leaves to trying both answers.
struct Variant {
  bool punctual = false;       ///< warm up with no forward that would delay the first input half
  bool skip_forwards = false;  ///< leave a forward out of a round where it would delay the next input half
  bool fill_all_gaps = false;  ///< a weight half even where it is longer than the gap
};

class Heuristic {
 public:
  Heuristic(const std::vector<ZeroBubbleRank>& ranks, int micro_batches, const std::vector<Bytes>& room,
            Variant variant)
      : ranks_(ranks), n_(micro_batches), room_(room), variant_(variant), state_(ranks.size()) {}

  /// False where the memory leads into a dead end.
  bool run() {
    if (!warm_up()) return false;
    for (int i = 1; i < n_; ++i) {
      if (!round_of_forwards() || !round_of_inputs()) return false;
    }
    for (int r = 0; r < depth(); ++r) {
      while (state_[r].weights < n_) put(r, ZeroBubblePass::weight);
    }
    return true;
  }

  Nanoseconds span() const {
    Nanoseconds longest = 0;
    for (const State& s : state_) longest = std::max(longest, s.free - s.first);
    return longest;
  }

  std::vector<ZeroBubbleOrder> take() {
    std::vector<ZeroBubbleOrder> orders;
    for (State& s : state_) orders.push_back(std::move(s.order));
    return orders;
  }

 private:
  struct State {
    int inputs = 0, weights = 0;  ///< micro-batches that have run them
    Nanoseconds first = 0;        ///< its first start
    Nanoseconds free = 0;
    Nanoseconds idle = 0;  ///< since its first start
    Bytes held = 0;
    std::vector<Nanoseconds> forward_ends, input_ends;
    ZeroBubbleOrder order;

    int forwards() const { return static_cast<int>(forward_ends.size()); }
  };

  int depth() const { return static_cast<int>(ranks_.size()); }

  /// When the next pass of that kind has what it needs from other ranks.
  Nanoseconds arrival(int r, ZeroBubblePass pass) const {
    if (pass == ZeroBubblePass::forward && r > 0)
      return state_[r - 1].forward_ends[state_[r].forwards()] + ranks_[r].from_before;
    if (pass == ZeroBubblePass::input && r + 1 < depth())
      return state_[r + 1].input_ends[state_[r].inputs] + ranks_[r].from_after;
    return 0;
  }

  void put(int r, ZeroBubblePass pass) {
    State& s = state_[r];
    const ZeroBubbleRank& rank = ranks_[r];
    const Nanoseconds start = std::max(s.free, arrival(r, pass));
    s.order.empty() ? void(s.first = start) : void(s.idle += start - s.free);
    s.order.push_back(pass);
    switch (pass) {
      case ZeroBubblePass::forward:
        s.free = start + rank.forward;
        s.held += rank.taken;
        s.forward_ends.push_back(s.free);
        break;
      case ZeroBubblePass::input:
        s.free = start + rank.input;
        s.held += rank.input_change;
        s.input_ends.push_back(s.free);
        ++s.inputs;
        break;
      case ZeroBubblePass::weight:
        s.free = start + rank.weight;
        s.held += rank.weight_change;
        ++s.weights;
        break;
    }
  }

  bool warm_up() {
    for (int r = 0; r < depth(); ++r) {
      if (ranks_[r].taken > room_[r]) return false;
      put(r, ZeroBubblePass::forward);
    }
    std::vector<int> more = further_forwards();
    for (int r = 0; r < depth(); ++r) {
      // At least one more than the next rank, while there are any.
      if (r > 0) more[r] = std::min(more[r], 1 + more[r - 1] == n_ ? n_ - 1 : std::max(0, more[r - 1] - 1));
      for (int k = 0; k < more[r]; ++k) put(r, ZeroBubblePass::forward);
    }
    return round_of_inputs();
  }

  /// Per rank, how many forwards have time and room until its first input half can begin.
  std::vector<int> further_forwards() const {
    std::vector<int> more(ranks_.size(), 0);
    Nanoseconds due = state_.back().free;
    for (int r = depth() - 1; r >= 0; --r) {
      const ZeroBubbleRank& rank = ranks_[r];
      if (r + 1 < depth()) due += rank.from_after;
      Nanoseconds free = state_[r].free;
      Bytes held = state_[r].held;
      while (1 + more[r] < n_ && held + rank.taken <= room_[r] &&
             (variant_.punctual ? free + rank.forward <= due : free < due)) {
        free += rank.forward;
        held += rank.taken;
        ++more[r];
      }
      due = std::max(free, due) + rank.input;
    }
    return more;
  }

  bool round_of_forwards() {
    std::vector<bool> wanted(ranks_.size());
    for (int r = depth() - 1; r >= 0; --r) {
      wanted[r] = state_[r].forwards() < n_ && !(variant_.skip_forwards && better_skipped(r)) &&
                  (r + 1 == depth() || wanted[r + 1] || state_[r + 1].forwards() == n_);
    }
    for (int r = 0; r < depth(); ++r) {
      if (!wanted[r]) continue;
      if (!make_room(r, ranks_[r].taken)) return false;
      fill_gap(r, ZeroBubblePass::forward);
      put(r, ZeroBubblePass::forward);
    }
    return true;
  }

  bool round_of_inputs() {
    for (int r = depth() - 1; r >= 0; --r) {
      if (!make_room(r, ranks_[r].input_change)) return false;
      fill_gap(r, ZeroBubblePass::input);
      put(r, ZeroBubblePass::input);
    }
    return true;
  }

  /// Whether a forward now would delay the next input half, and waiting for that one costs no rank more idle
  /// time than the worst has already. Only where the next rank has a forward in store.
  bool better_skipped(int r) const {
    if (r + 1 == depth() || state_[r].forwards() < state_[r + 1].forwards() + 2) return false;
    const State& s = state_[r];
    const Nanoseconds due =
        state_[r + 1].free + ranks_[r + 1].forward + ranks_[r + 1].input + ranks_[r].from_after;
    Nanoseconds end = s.free + ranks_[r].forward;
    Bytes held = s.held + ranks_[r].taken;
    for (int w = s.weights; held > room_[r] && w < s.inputs; ++w) {
      end += ranks_[r].weight;
      held += ranks_[r].weight_change;
    }
    return end > due && due - s.free <= worst_idle() - s.idle;
  }

  bool make_room(int r, Bytes change) {
    while (state_[r].held + change > room_[r]) {
      if (state_[r].weights == state_[r].inputs) return false;
      put(r, ZeroBubblePass::weight);
    }
    return true;
  }

  /// Weight halves while rank r waits for its next pass of that kind: all that fit, and one more where the
  /// gap would make r the rank that idles most.
  void fill_gap(int r, ZeroBubblePass pass) {
    const State& s = state_[r];
    while (s.weights < s.inputs) {
      const Nanoseconds gap = arrival(r, pass) - s.free;
      const bool fits = gap >= ranks_[r].weight;
      if (gap <= 0 || (!fits && !variant_.fill_all_gaps && gap <= worst_idle() - s.idle)) return;
      put(r, ZeroBubblePass::weight);
    }
  }

  Nanoseconds worst_idle() const {
    Nanoseconds worst = 0;
    for (const State& s : state_) worst = std::max(worst, s.idle);
    return worst;
  }

  const std::vector<ZeroBubbleRank>& ranks_;
  int n_;
  const std::vector<Bytes>& room_;
  Variant variant_;
  std::vector<State> state_;
};

/// The transfer from block `from` to block `to`, which waits for it.
Nanoseconds transfer_from(const Placement& placement, int from, int to) {
  for (const Dependency& input : placement.blocks[to].after) {
    if (input.block == from) return placement.transfer(input, to);
  }
  return 0;
}

std::vector<ZeroBubbleRank> zero_bubble_ranks(const Chain& chain, const Placement& placement) {
  std::vector<ZeroBubbleRank> ranks;
  for (std::size_t s = 0; s < chain.stages.size(); ++s) {
    const ChainPlace& stage = chain.stages[s];
    const Block& forward = placement.blocks[stage.forward];
    const Block& input = placement.blocks[stage.backward];
    const Block& weight = placement.blocks[stage.weight];
    ZeroBubbleRank rank{forward.time,   input.time,   weight.time,  0, 0,
                        forward.memory, input.memory, weight.memory};
    if (s > 0) rank.from_before = transfer_from(placement, chain.stages[s - 1].forward, stage.forward);
    if (s + 1 < chain.stages.size())
      rank.from_after = transfer_from(placement, chain.stages[s + 1].backward, stage.backward);
    ranks.push_back(rank);
  }
  return ranks;
}

/// The best of its variants by the longest span of a rank; nullopt where none stays within the room.
/// O(variants * ranks * micro-batches).
std::optional<std::vector<ZeroBubbleOrder>> zero_bubble_auto(const std::vector<ZeroBubbleRank>& ranks,
                                                             int micro_batches,
                                                             const std::vector<Bytes>& room) {
  std::optional<std::vector<ZeroBubbleOrder>> best;
  Nanoseconds best_span = 0;
  for (int v = 0; v < 8; ++v) {
    Heuristic heuristic(ranks, micro_batches, room, {(v & 1) != 0, (v & 2) != 0, (v & 4) != 0});
    if (!heuristic.run() || (best && heuristic.span() >= best_span)) continue;
    best_span = heuristic.span();
    best = heuristic.take();
  }
  return best;
}

/// The heuristic with room for `count` micro-batches a rank, or (count = 0) with the room of the devices.
Orders auto_orders(const Chain& chain, const Placement& placement, int micro_batches, Bytes count) {
  const std::vector<ZeroBubbleRank> ranks = zero_bubble_ranks(chain, placement);
  std::vector<Bytes> room;
  for (int r = 0; r < chain.depth(); ++r) {
    const Device& device = placement.devices[chain.devices[r]];
    const bool limited = count == 0 && device.memory != kUnlimited;
    const __int128 all = static_cast<__int128>(ranks[r].taken) * (count > 0 ? count : micro_batches);
    room.push_back(limited ? device.memory - device.static_memory
                           : static_cast<Bytes>(std::min<__int128>(all, kUnlimited / 2)));
  }
  auto orders = zero_bubble_auto(ranks, micro_batches, room);
  if (!orders) return {};
  ChainOrders written(chain, placement, micro_batches);
  for (int r = 0; r < chain.depth(); ++r) {
    int next[3] = {0, 0, 0};
    for (const ZeroBubblePass pass : (*orders)[r]) {
      const int i = next[static_cast<int>(pass)]++;
      if (pass == ZeroBubblePass::forward) written.rank(r).forward(0, i);
      if (pass == ZeroBubblePass::input) written.rank(r).backward(0, i);
      if (pass == ZeroBubblePass::weight) written.rank(r).weight(0, i);
    }
  }
  return written.take();
}

}  // namespace

Orders zb_1p_orders(const Chain& chain, const Placement& placement, int micro_batches) {
  return auto_orders(chain, placement, micro_batches, chain.depth());
}

Orders zb_2p_orders(const Chain& chain, const Placement& placement, int micro_batches) {
  return auto_orders(chain, placement, micro_batches, 2 * static_cast<Bytes>(chain.depth()));
}

Orders zb_auto_orders(const Chain& chain, const Placement& placement, int micro_batches) {
  return auto_orders(chain, placement, micro_batches, 0);
}

}  // namespace ostinato
