// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sets of layers that hold with each layer all that it reads from ("downsets" of the layer graph, also
// called ideals). What lies between two of them is what a stage can be. A chain of n layers has n + 1, two
// branches of n layers (n + 1)^2. Private to search/partition.

#include <cstdint>
#include <vector>

#include "search/profile/layer_graph.h"

namespace ostinato::chain {

class Downsets {
 public:
  /// `groups`: the layers, in model order, each with the layers that it must stay with (a shard); a group is
  /// added as a whole. Stops after `most` downsets; complete() is false then. O(downsets * groups * edges).
  Downsets(const LayerGraph& graph, std::vector<std::vector<int>> groups, int most);

  bool complete() const { return complete_; }
  int size() const { return static_cast<int>(sets_.size()); }
  int full() const { return full_; }  ///< the downset of all layers; 0 is the empty one
  const std::vector<std::vector<int>>& groups() const { return groups_; }

  struct Step {
    int group;
    int to;  ///< the downset with that group added
  };
  const std::vector<Step>& steps(int downset) const { return steps_[downset]; }

  /// The groups of `larger` that are not in `smaller`, rising.
  std::vector<int> between(int smaller, int larger) const;

 private:
  using Set = std::vector<std::uint64_t>;  ///< one bit a group

  static bool has(const Set& set, int group) { return set[group / 64] >> (group % 64) & 1; }
  void enumerate(int most);
  bool addable(const Set& set, int group) const;

  std::vector<std::vector<int>> groups_;
  std::vector<std::vector<int>> inputs_;  ///< per group: groups that it reads from
  std::vector<Set> sets_;
  std::vector<std::vector<Step>> steps_;
  int full_ = 0;
  bool complete_ = true;
};

}  // namespace ostinato::chain
