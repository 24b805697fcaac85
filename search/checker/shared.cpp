#include "search/checker/shared.h"

#include <algorithm>
#include <set>

namespace ostinato::checker {
namespace {

class SharedBound {
 public:
  SharedBound(const Graph& graph, int device, int n, Wide known)
      : graph_(graph), all_(graph.on_device(device)), n_(n), best_(known) {
    for (const int b : all_) widths_.insert(graph.block(b).devices.size());
  }

  Wide run() {
    if (widths_.size() < 2) return 0;
    std::set<Wide> heads, tails;
    for (const int b : all_) {
      heads.insert(graph_.head(b));
      tails.insert(graph_.tail(b));
    }
    for (const Wide h : heads) {
      for (const Wide q : tails) try_set(h, q);
    }
    return best_;
  }

 private:
  /// J = {b on the device : head >= h, tail >= q}.
  void try_set(Wide h, Wide q) {
    std::vector<int> set;
    Wide work = 0, latest = 0, longest = 0;
    for (const int b : all_) {
      if (graph_.head(b) < h || graph_.tail(b) < q) continue;
      set.push_back(b);
      work += n_ * static_cast<Wide>(graph_.block(b).time);
      latest = std::max(latest, graph_.head(b));
      longest = std::max(longest, graph_.tail(b));
    }
    if (set.empty() || work + latest + longest <= best_) return;  // no front exceeds a head, no back a tail
    // The sets O1 and O2 are nested, so that any two of them meet: each side takes its best.
    Wide front = 0, back = 0;
    for (const std::size_t width : widths_) {
      const std::vector<int> narrow = narrow_blocks(set, width);
      if (narrow.empty()) continue;
      front = std::max(front, least_idle(set, narrow, false));
      back = std::max(back, least_idle(set, narrow, true));
    }
    best_ = std::max(best_, work + front + back);
  }

  std::vector<int> narrow_blocks(const std::vector<int>& set, std::size_t width) const {
    std::vector<int> narrow;
    for (const int b : set) {
      if (graph_.block(b).devices.size() <= width) narrow.push_back(b);
    }
    return narrow;
  }

  /// Which blocks keep the device from `set` while none of `narrow` has started (or, backwards, after all of
  /// them).
  std::vector<char> blocking(const std::vector<int>& set, const std::vector<int>& narrow) const {
    std::vector<int> wide;  // one block of each device set outside `narrow`
    std::set<int> seen;
    for (const int b : set) {
      const bool in_narrow = std::find(narrow.begin(), narrow.end(), b) != narrow.end();
      if (!in_narrow && seen.insert(graph_.device_set(b)).second) wide.push_back(b);
    }
    std::vector<char> result;
    for (int c = 0; c < graph_.blocks(); ++c) {
      const bool blocks_all =
          std::all_of(wide.begin(), wide.end(), [&](int b) { return graph_.conflict(b, c); });
      result.push_back(blocks_all ? 1 : 0);
    }
    for (const int b : set) result[b] = 0;
    return result;
  }

  /// The least front (backwards: back) over the blocks of `narrow`.
  Wide least_idle(const std::vector<int>& set, const std::vector<int>& narrow, bool backwards) const {
    const std::vector<char> counts = blocking(set, narrow);
    const bool with_transfers = set.size() == narrow.size();
    std::vector<Wide> longest(counts.size(), 0);
    graph_.walk(backwards, [&](int b, const std::vector<Graph::Edge>& edges) {
      for (const Graph::Edge& edge : edges) {
        const Wide time = counts[edge.block] != 0 ? graph_.block(edge.block).time : 0;
        longest[b] = std::max(longest[b], longest[edge.block] + time + (with_transfers ? edge.transfer : 0));
      }
    });
    Wide least = longest[narrow.front()];
    for (const int b : narrow) least = std::min(least, longest[b]);
    return least;
  }

  const Graph& graph_;
  const std::vector<int>& all_;
  Wide n_;
  Wide best_;
  std::set<std::size_t> widths_;  ///< numbers of devices that blocks on the device hold
};

}  // namespace

Wide shared_bound(const Graph& graph, int device, int n, Wide known) {
  return SharedBound(graph, device, n, known).run();
}

}  // namespace ostinato::checker
