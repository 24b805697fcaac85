// SPDX-License-Identifier: Apache-2.0
#include "search/checker/whole_steps.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

namespace ostinato::checker {
namespace {

/// The first step of a block, on one of its devices, and what the device may have run before.
struct First {
  int block;
  int device;
  Nanoseconds unit = 0;  ///< of the work before it, which is a multiple of that; 0: there is none
  Wide most = 0;         ///< of that work
  struct Input {
    std::size_t first;  ///< place among all
    Wide later;         ///< this one is at least so much later, each from the first start of its device
  };
  std::vector<Input> inputs = {};
};

class WholeSteps {
 public:
  WholeSteps(const Graph& graph, int n, bool backwards) : graph_(graph), n_(n), backwards_(backwards) {
    graph.walk(backwards, [&](int b, const std::vector<Graph::Edge>& edges) {
      edges_[b] = edges;
      for (const int d : graph.block(b).devices) {
        place_[{b, d}] = all_.size();
        all_.push_back({b, d});
      }
    });
    for (First& first : all_) {
      if (first.device == graph.block(first.block).devices.front()) find_waiting_for(first.block);
      find_work_before(first);
    }
    for (int d = 0; d < graph.devices(); ++d) {
      find_inputs(d);
      work_.push_back(0);
      for (const int b : graph.on_device(d)) work_.back() += n_ * graph.block(b).time;
    }
  }

  Wide least_span() const {
    Wide low = *std::max_element(work_.begin(), work_.end());
    Wide high = low;
    for (Wide more = 1; !is_possible(high); more *= 2) {
      low = high + 1;
      high += more;
    }
    while (low < high) {
      const Wide middle = (low + high) / 2;
      is_possible(middle) ? high = middle : low = middle + 1;
    }
    return low;
  }

 private:
  /// Blocks that a path from `block` leads to, and itself.
  void find_waiting_for(int block) {
    waiting_.assign(graph_.blocks(), false);
    graph_.walk(backwards_, [&](int b, const std::vector<Graph::Edge>& edges) {
      waiting_[b] = b == block || std::any_of(edges.begin(), edges.end(),
                                              [&](const Graph::Edge& edge) { return waiting_[edge.block]; });
    });
  }

  void find_work_before(First& first) const {
    const Device& device = graph_.placement().devices[first.device];
    const Wide room = device.memory == kUnlimited ? kNoLimit : Wide{device.memory} - device.static_memory;
    Wide all = 0, kept = 0, in_room = 0;
    bool limited = device.memory != kUnlimited;
    for (const int b : graph_.on_device(first.device)) {
      const Block& block = graph_.block(b);
      kept += block.memory;
      if (waiting_[b]) continue;
      all += n_ * block.time;
      first.unit = std::gcd(first.unit, block.time);
      const Bytes taken = backwards_ ? -block.memory : block.memory;
      if (taken < 0 || (taken == 0 && block.time > 0)) limited = false;
      if (taken > 0 && limited) in_room = std::max(in_room, room * block.time / taken);
    }
    first.most = limited && kept == 0 ? std::min(all, in_room) : all;
    if (first.unit > 0) first.most -= first.most % first.unit;
  }

  /// Of the first steps on `device`.
  void find_inputs(int device) {
    const std::vector<Wide> from = graph_.from_device(device, backwards_);
    for (const int b : graph_.on_device(device)) {
      First& first = all_[place_.at({b, device})];
      for (const Graph::Edge& edge : edges_.at(b)) {
        for (const int other : graph_.block(edge.block).devices) {
          const std::optional<Wide> gap = between_first_starts(from, other);
          if (!gap) continue;
          first.inputs.push_back(
              {place_.at({edge.block, other}), *gap + graph_.block(edge.block).time + edge.transfer});
        }
      }
    }
  }

  /// From the first start on the device of `from` to that on `other`, at least.
  std::optional<Wide> between_first_starts(const std::vector<Wide>& from, int other) const {
    std::optional<Wide> least;
    for (const int z : graph_.on_device(other)) {
      if (from[z] == Graph::kNone) return std::nullopt;
      least = std::min(least.value_or(from[z]), from[z]);
    }
    return least;
  }

  bool is_possible(Wide span) const {
    std::vector<Wide> earliest;  // of each first step, from the first start of its device
    for (const First& first : all_) {
      Wide at = 0;
      for (const First::Input& input : first.inputs) at = std::max(at, earliest[input.first] + input.later);
      const Wide idle = span - work_[first.device];
      if (idle < 0) return false;
      // Work w and idle time i <= idle with w + i >= at: the least sum.
      Wide work = 0;
      if (at > idle && first.unit > 0) work = (at - idle + first.unit - 1) / first.unit * first.unit;
      if (work > first.most || (first.unit == 0 && at > idle)) return false;
      earliest.push_back(std::max(at, work));
    }
    return true;
  }

  static constexpr Wide kNoLimit = Wide{1} << 62;

  const Graph& graph_;
  const Wide n_;
  const bool backwards_;
  std::map<int, std::vector<Graph::Edge>> edges_;
  std::map<std::pair<int, int>, std::size_t> place_;  ///< of a block on a device
  std::vector<First> all_;                            ///< after what their inputs are
  std::vector<Wide> work_;                            ///< of each device
  std::vector<bool> waiting_;                         ///< scratch: per block
};

}  // namespace

Wide whole_steps_bound(const Graph& graph, int n, bool backwards) {
  return WholeSteps(graph, n, backwards).least_span();
}

}  // namespace ostinato::checker
