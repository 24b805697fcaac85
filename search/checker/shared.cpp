// SPDX-License-Identifier: Apache-2.0
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
    const std::size_t most = most_thresholds();
    for (const Wide h : evenly(heads, most)) {
      for (const Wide q : evenly(tails, most)) try_set(h, q);
    }
    return best_;
  }

 private:
  /// The largest c with c^2 * widths * (blocks + edges) * devices <= kMostSharedWork.
  std::size_t most_thresholds() const {
    const Wide one = static_cast<Wide>(widths_.size()) * graph_.size() * graph_.devices();
    Wide most = 0;
    while (most < static_cast<Wide>(all_.size()) && (most + 1) * (most + 1) * one <= kMostSharedWork) ++most;
    return static_cast<std::size_t>(most);
  }

  /// At most so many of the values, evenly by rank, the least of all first.
  static std::vector<Wide> evenly(const std::set<Wide>& values, std::size_t most) {
    std::vector<Wide> all(values.begin(), values.end());
    if (all.size() <= most) return all;
    for (std::size_t i = 0; i < most; ++i) all[i] = all[i * all.size() / most];
    all.resize(most);
    return all;
  }

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
      if (std::none_of(set.begin(), set.end(), [&](int b) { return narrow(b, width); })) continue;
      front = std::max(front, least_idle(set, width, false));
      back = std::max(back, least_idle(set, width, true));
    }
    best_ = std::max(best_, work + front + back);
  }

  /// O1 or O2: the blocks of a set on at most `width` devices.
  bool narrow(int b, std::size_t width) const { return graph_.block(b).devices.size() <= width; }

  /// One block of each set of devices that blocks of `set` outside of O hold.
  std::vector<int> wide_blocks(const std::vector<int>& set, std::size_t width) const {
    std::vector<int> wide;
    std::set<int> seen;
    for (const int b : set) {
      if (!narrow(b, width) && seen.insert(graph_.device_set(b)).second) wide.push_back(b);
    }
    return wide;
  }

  /// The least front (backwards: back) over the blocks of O.
  Wide least_idle(const std::vector<int>& set, std::size_t width, bool backwards) const {
    const std::vector<int> wide = wide_blocks(set, width);
    // Which blocks keep the device from `set` while none of O has started (or, backwards, after all of them).
    std::vector<char> counts;
    for (int c = 0; c < graph_.blocks(); ++c) {
      counts.push_back(
          std::all_of(wide.begin(), wide.end(), [&](int b) { return graph_.conflict(b, c); }) ? 1 : 0);
    }
    for (const int b : set) counts[b] = 0;
    std::vector<Wide> longest(counts.size(), 0);
    graph_.walk(backwards, [&](int b, const std::vector<Graph::Edge>& edges) {
      for (const Graph::Edge& edge : edges) {
        const Wide time = counts[edge.block] != 0 ? graph_.block(edge.block).time : 0;
        longest[b] = std::max(longest[b], longest[edge.block] + time + (wide.empty() ? edge.transfer : 0));
      }
    });
    Wide least = kNever;
    for (const int b : set) {
      if (narrow(b, width)) least = std::min(least, longest[b]);
    }
    return least;
  }

  static constexpr Wide kNever = static_cast<Wide>(1) << 120;

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
