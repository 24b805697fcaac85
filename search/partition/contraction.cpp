// SPDX-License-Identifier: Apache-2.0
// contraction.h says which groups may join. By turns, until neither changes anything:
// 1. join_chains(): a group joins its only input, or else its only reader.
// 2. join_alike(): groups with the same inputs and the same readers join.
// Groups of `fixed` stay as they are, and no group becomes longer than `most`.
#include "search/partition/contraction.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace ostinato::chain {
namespace {

class Contraction {
 public:
  Contraction(const LayerGraph& graph, std::vector<std::vector<int>> groups, std::vector<Nanoseconds> times,
              std::vector<bool> fixed, Nanoseconds most)
      : groups_(std::move(groups)),
        times_(std::move(times)),
        fixed_(std::move(fixed)),
        most_(most),
        inputs_(groups_.size()),
        readers_(groups_.size()) {
    std::vector<int> group_of(static_cast<std::size_t>(graph.layers()));
    for (std::size_t g = 0; g < groups_.size(); ++g)
      for (const int l : groups_[g]) group_of[l] = static_cast<int>(g);
    for (int l = 0; l < graph.layers(); ++l) {
      for (const LayerInput& input : graph.inputs(l)) {
        if (group_of[input.layer] == group_of[l]) continue;
        inputs_[group_of[l]].insert(group_of[input.layer]);
        readers_[group_of[input.layer]].insert(group_of[l]);
      }
    }
  }

  std::vector<std::vector<int>> run() {
    while (join_chains() || join_alike()) {
    }
    std::erase_if(groups_, [](const std::vector<int>& group) { return group.empty(); });
    for (std::vector<int>& group : groups_) std::sort(group.begin(), group.end());
    std::sort(groups_.begin(), groups_.end());
    return std::move(groups_);
  }

 private:
  int size() const { return static_cast<int>(groups_.size()); }
  bool joinable(int a, int b) const {
    return a != b && !fixed_[a] && !fixed_[b] && times_[a] <= most_ - times_[b];
  }

  bool join_chains() {
    bool any = false;
    for (int g = 0; g < size(); ++g) {
      if (groups_[g].empty()) continue;
      if (inputs_[g].size() == 1 && joinable(*inputs_[g].begin(), g)) {
        join(*inputs_[g].begin(), g);
        any = true;
      } else if (readers_[g].size() == 1 && joinable(*readers_[g].begin(), g)) {
        join(*readers_[g].begin(), g);
        any = true;
      }
    }
    return any;
  }

  bool join_alike() {
    bool any = false;
    std::map<std::pair<std::set<int>, std::set<int>>, int> known;
    for (int g = 0; g < size(); ++g) {
      if (groups_[g].empty() || fixed_[g]) continue;
      const auto [found, is_new] = known.try_emplace({inputs_[g], readers_[g]}, g);
      if (is_new) continue;
      if (joinable(found->second, g)) {
        join(found->second, g);
        any = true;
      } else {
        found->second = g;
      }
    }
    return any;
  }

  /// `lost` becomes part of `kept`.
  void join(int kept, int lost) {
    groups_[kept].insert(groups_[kept].end(), groups_[lost].begin(), groups_[lost].end());
    times_[kept] += times_[lost];
    groups_[lost].clear();
    for (const int from : inputs_[lost]) {
      readers_[from].erase(lost);
      if (from == kept) continue;
      readers_[from].insert(kept);
      inputs_[kept].insert(from);
    }
    for (const int to : readers_[lost]) {
      inputs_[to].erase(lost);
      if (to == kept) continue;
      inputs_[to].insert(kept);
      readers_[kept].insert(to);
    }
    inputs_[lost].clear();
    readers_[lost].clear();
  }

  std::vector<std::vector<int>> groups_;  ///< empty: joined with another
  std::vector<Nanoseconds> times_;
  const std::vector<bool> fixed_;
  const Nanoseconds most_;
  std::vector<std::set<int>> inputs_, readers_;
};

}  // namespace

std::vector<std::vector<int>> contract(const LayerGraph& graph, std::vector<std::vector<int>> groups,
                                       std::vector<Nanoseconds> times, std::vector<bool> fixed,
                                       Nanoseconds most) {
  return Contraction(graph, std::move(groups), std::move(times), std::move(fixed), most).run();
}

}  // namespace ostinato::chain
