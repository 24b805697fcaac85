// SPDX-License-Identifier: Apache-2.0

#include "search/partition/chain_problem.h"

namespace ostinato::chain {
namespace {

/// Nodes between two looks at the stop.
constexpr long kNodesAtOnce = 1024;

/// Depth first over the ends of the stages, front to back.
class CutSearch {
 public:
  CutSearch(const Problem& problem, Nanoseconds limit, long& nodes)
      : problem_(problem),
        limit_(limit),
        nodes_(nodes),
        loads_(problem.devices(), shards_alone()),
        left_(loads_.size(), 0) {
    for (const int device : problem.device_of) ++left_[device];
  }

  Searched run() {
    Searched result;
    const bool found = place(0, 0);
    if (found) result.ends = ends_;
    result.complete = found || nodes_ > 0;
    return result;
  }

 private:
  /// What every device spends on the shards at least. Their activations are counted at the end.
  Load shards_alone() const {
    Load load;
    load.time = problem_.costs.shard_time();
    load.fixed = problem_.costs.shard_fixed();
    return load;
  }

  /// Puts stages from `stage` on, from layer `first` on. True: ends_ is a partition.
  bool place(int stage, int first) {
    const int layers = problem_.costs.layers();
    if (stage == problem_.stages()) return first == layers && all_fit(problem_, ends_);
    const int device = problem_.device_of[stage];
    const Load before = loads_[device];
    const bool last_stage = stage + 1 == problem_.stages();
    const int last = layers - (problem_.stages() - 1 - stage);
    bool found = false;
    --left_[device];
    for (int end = last_stage ? layers : first + 1; end <= last && !found; ++end) {
      if (!next_node()) break;
      loads_[device] =
          problem_.add_stage(before, device, stage, first, end, problem_.may_keep ? 0 : end - first);
      // Longer stages take longer still.
      if (loads_[device].time > limit_ || problem_.costs.splits(first, end)) break;
      if (!problem_.costs.allows(device, first, end) || !problem_.fits(loads_[device], device) ||
          !rest_has_room(end))
        continue;
      ends_.push_back(end);
      found = place(stage + 1, end);
      if (!found) ends_.pop_back();
    }
    ++left_[device];
    loads_[device] = before;
    return found;
  }

  /// False once the nodes are used up, or the search is stopped.
  bool next_node() {
    --nodes_;
    if (nodes_ % kNodesAtOnce == 0 && problem_.stopped()) nodes_ = 0;
    return nodes_ > 0;
  }

  /// The time from layer `first` on fits into what the devices with stages left may still take.
  bool rest_has_room(int first) const {
    __int128 room = 0;
    for (std::size_t d = 0; d < loads_.size(); ++d) {
      if (left_[d] > 0) room += limit_ - loads_[d].time;
    }
    return room >= problem_.costs.least_time(first, problem_.costs.layers(), !problem_.may_keep);
  }

  const Problem& problem_;
  const Nanoseconds limit_;
  long& nodes_;
  std::vector<Load> loads_;
  std::vector<int> left_;  ///< stages not yet placed, per device
  Ends ends_;
};

}  // namespace

Searched search_cuts(const Problem& problem, Nanoseconds limit, long& nodes) {
  return CutSearch(problem, limit, nodes).run();
}

}  // namespace ostinato::chain
