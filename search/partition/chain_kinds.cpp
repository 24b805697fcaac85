// SPDX-License-Identifier: Apache-2.0
// The order of uneven devices along the chain. What is left of a chain depends on how many devices of each
// kind it has used, not on their order: so the states are these counts (a mixed-radix number), and each holds
// the positions that a partition over that many devices can end at. A device that must run certain layers
// counts as a kind for itself.

#include <algorithm>

#include "search/partition/chain_problem.h"

namespace ostinato::chain {
namespace {

/// Devices that must run certain layers; each doubles the states.
constexpr int kMostNamed = 6;

class KindStates {
 public:
  explicit KindStates(const Problem& problem) : problem_(problem), devices_(problem.costs.kinds()) {
    int named = 0;
    for (int d = 0; d < problem.devices(); ++d) {
      if (problem.costs.named(d)) {
        devices_.push_back({d});
        too_many_ |= ++named > kMostNamed;
      } else {
        devices_[problem.model.kind_of(d)].push_back(d);
      }
    }
    std::erase_if(devices_, [](const std::vector<int>& list) { return list.empty(); });
    for (const auto& list : devices_) {
      stride_.push_back(states_);
      states_ *= static_cast<long>(list.size()) + 1;
      too_many_ |= states_ * (problem.costs.layers() + 1) > kMostKindWork;
      if (too_many_) return;
    }
  }

  bool too_many() const { return too_many_; }

  bool feasible(Nanoseconds limit) {
    const std::size_t width = static_cast<std::size_t>(problem_.costs.layers()) + 1;
    reached_.assign(states_, std::vector<char>(width, 0));
    reached_[0][0] = 1;
    for (long state = 1; state < states_; ++state) {
      problem_.check_stop();
      for (int k = 0; k < kinds(); ++k) {
        if (used(state, k) > 0) extend(state, k, limit);
      }
    }
    return reached_.back().back() != 0;
  }

  /// After a feasible() that said yes, with the same limit. Neighbours of one kind where there is a choice.
  std::vector<int> devices_in_order(Nanoseconds limit) const {
    std::vector<int> kinds_from_the_end;
    long state = states_ - 1;
    int end = problem_.costs.layers();
    int usual = 0;
    while (state > 0) {
      const auto [kind, first] = step_back(state, end, usual, limit);
      kinds_from_the_end.push_back(kind);
      state -= stride_[kind];
      end = first;
      usual = kind;
    }
    std::reverse(kinds_from_the_end.begin(), kinds_from_the_end.end());
    std::vector<std::size_t> next(devices_.size(), 0);
    std::vector<int> order;
    for (const int k : kinds_from_the_end) order.push_back(devices_[k][next[k]++]);
    return order;
  }

 private:
  int kinds() const { return static_cast<int>(devices_.size()); }
  long used(long state, int k) const {
    return state / stride_[k] % (static_cast<long>(devices_[k].size()) + 1);
  }
  /// The stage that the last device of this state runs.
  int last_stage(long state) const {
    long total = 0;
    for (int k = 0; k < kinds(); ++k) total += used(state, k);
    return static_cast<int>(total) - 1;
  }

  void extend(long state, int k, Nanoseconds limit) {
    const std::vector<char>& starts = reached_[state - stride_[k]];
    if (std::find(starts.begin(), starts.end(), 1) == starts.end()) return;
    const std::vector<char> ends =
        reachable_ends(problem_, devices_[k].front(), last_stage(state), starts, limit);
    std::vector<char>& all = reached_[state];
    for (std::size_t i = 0; i < ends.size(); ++i) all[i] = static_cast<char>(all[i] | ends[i]);
  }

  /// A last stage of the state that ends at `end`: its kind and where it starts.
  std::pair<int, int> step_back(long state, int end, int usual, Nanoseconds limit) const {
    const int stage = last_stage(state);
    for (int i = 0; i < kinds(); ++i) {
      const int k = (usual + i) % kinds();
      if (used(state, k) == 0) continue;
      const std::vector<char>& starts = reached_[state - stride_[k]];
      for (int first = end - 1; first >= 0; --first) {
        if (starts[first] && problem_.fitting(devices_[k].front(), stage, first, end, limit))
          return {k, first};
      }
    }
    return {usual, 0};  // not reached: `end` was reached from somewhere
  }

  const Problem& problem_;
  std::vector<std::vector<int>> devices_;  ///< by kind, in the order of the file
  std::vector<long> stride_;
  long states_ = 1;
  bool too_many_ = false;
  std::vector<std::vector<char>> reached_;  ///< by state, then position
};

}  // namespace

KindOrder best_kind_order(const Problem& problem) {
  KindStates states(problem);
  if (states.too_many()) return {std::nullopt, false};
  Nanoseconds low = 0, high = longest_load(problem);
  if (!states.feasible(high)) return {};
  while (low < high) {
    const Nanoseconds middle = low + (high - low) / 2;
    if (states.feasible(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  states.feasible(high);
  return {states.devices_in_order(high), true};
}

}  // namespace ostinato::chain
