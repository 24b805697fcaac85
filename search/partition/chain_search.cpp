#include <algorithm>

#include "search/partition/chain_problem.h"

namespace ostinato::chain {
namespace {

/// Depth first over the ends of the stages, front to back.
class CutSearch {
 public:
  CutSearch(const Problem& problem, Nanoseconds limit, long& nodes)
      : problem_(problem), limit_(limit), nodes_(nodes), loads_(problem.devices), left_(problem.devices, 0) {
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
  /// Puts stages from `stage` on, from layer `first` on. True: ends_ is a partition.
  bool place(int stage, int first) {
    const int layers = problem_.sums.layers();
    if (stage == problem_.stages()) return first == layers;
    const int device = problem_.device_of[stage];
    const Load before = loads_[device];
    const bool last_stage = stage + 1 == problem_.stages();
    const int last = layers - (problem_.stages() - 1 - stage);
    bool found = false;
    --left_[device];
    for (int end = last_stage ? layers : first + 1; end <= last && !found; ++end) {
      if (--nodes_ <= 0) break;
      if (before.time + problem_.sums.time(first, end) > limit_) break;  // longer stages take longer still
      loads_[device] = problem_.add(before, stage, first, end);
      if (!problem_.fits(loads_[device]) || !rest_has_room(end)) continue;
      ends_.push_back(end);
      found = place(stage + 1, end);
      if (!found) ends_.pop_back();
    }
    ++left_[device];
    loads_[device] = before;
    return found;
  }

  /// The time from layer `first` on fits into what the devices with stages left may still take.
  bool rest_has_room(int first) const {
    __int128 room = 0;
    for (int d = 0; d < problem_.devices; ++d) {
      if (left_[d] > 0) room += limit_ - loads_[d].time;
    }
    return room >= problem_.sums.time(first, problem_.sums.layers());
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
