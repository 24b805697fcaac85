// SPDX-License-Identifier: Apache-2.0
#include "search/partition/downsets.h"

#include <algorithm>
#include <map>

namespace ostinato::chain {

Downsets::Downsets(const LayerGraph& graph, std::vector<std::vector<int>> groups, int most)
    : groups_(std::move(groups)), inputs_(groups_.size()) {
  std::vector<int> group_of(graph.layers());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const int l : groups_[g]) group_of[l] = static_cast<int>(g);
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const int l : groups_[g]) {
      for (const LayerInput& input : graph.inputs(l)) {
        if (group_of[input.layer] != static_cast<int>(g)) inputs_[g].push_back(group_of[input.layer]);
      }
    }
  }
  enumerate(most);
}

bool Downsets::addable(const Set& set, int group) const {
  return !has(set, group) && std::all_of(inputs_[group].begin(), inputs_[group].end(),
                                         [&](int input) { return has(set, input); });
}

/// Breadth first: a downset comes behind every smaller one.
void Downsets::enumerate(int most) {
  std::map<Set, int> index;
  const int groups = static_cast<int>(groups_.size());
  sets_.emplace_back(groups_.size() / 64 + 1, 0);
  index[sets_.front()] = 0;
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    std::vector<Step>& steps = steps_.emplace_back();
    for (int g = 0; g < groups; ++g) {
      if (!addable(sets_[i], g)) continue;
      Set next = sets_[i];
      next[g / 64] |= std::uint64_t{1} << (g % 64);
      const auto [found, is_new] = index.emplace(next, static_cast<int>(sets_.size()));
      if (is_new) {
        complete_ = static_cast<int>(sets_.size()) < most;
        if (!complete_) return;
        sets_.push_back(std::move(next));
      }
      steps.push_back({g, found->second});
    }
  }
  full_ = size() - 1;
}

std::vector<int> Downsets::between(int smaller, int larger) const {
  std::vector<int> result;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (has(sets_[larger], g) && !has(sets_[smaller], g)) result.push_back(g);
  }
  return result;
}

}  // namespace ostinato::chain
