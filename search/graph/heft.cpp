// SPDX-License-Identifier: Apache-2.0
// HEFT (Topcuoglu, Hariri, Wu, IEEE TPDS 2002) with groups: the first vertex of a group chooses the device
// for all.
#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "search/graph/loads.h"
#include "search/graph/open_order.h"
#include "search/graph/rank.h"
#include "search/graph/slots.h"
#include "search/graph/strategies.h"
#include "search/numbers/random.h"

namespace ostinato::graph {
namespace {

/// 0.00005 time units.
constexpr Ticks kSameRank = kTicksPerUnit / 20'000;

class Heft {
 public:
  Heft(const GraphCosts& costs, const std::vector<char>& usable, bool published)
      : costs_(costs),
        graph_(costs.graph()),
        usable_(usable),
        published_(published),
        loads_(costs),
        slots_(costs.device_count()),
        end_(graph_.size(), 0) {}

  GraphPartition run(std::uint64_t seed) {
    for (const int v : published_ ? published_order(seed) : by_rank(seed)) {
      const int d = loads_.assigned(v) ? loads_.device(v) : earliest_finish(v);
      if (!loads_.assigned(v) && !loads_.assign(graph_.group[v], d)) break;
      const Ticks length = costs_.execution(v, d);
      const Ticks start = slots_[d].earliest(inputs_ready(v, d), length);
      slots_[d].add(start, length);
      end_[v] = start + length;
    }
    return {loads_.take(), std::move(end_), loads_.reason()};
  }

 private:
  std::vector<int> by_rank(std::uint64_t seed) const {
    const std::vector<Ticks> rank = upward_ranks(costs_);
    // A vertex comes before its successors even where the rank is equal.
    std::vector<int> order = graph_.order;
    if (seed != 0) tie_break(order, seed);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return rank[a] > rank[b]; });
    return order;
  }

  /// The published program takes ranks that are nearer than kSameRank as equal, and then draws.
  std::vector<int> published_order(std::uint64_t seed) const {
    const std::vector<Ticks> rank = published_upward_ranks(costs_, seed).rank;
    const std::vector<int> draw = open_order(graph_.size(), seed + 2);
    std::vector<int> missing(graph_.size()), order;
    std::priority_queue<std::tuple<Ticks, int, int>> ready;  // a vertex comes before its successors
    const auto push = [&](int v) { ready.emplace(rank[v] / kSameRank, -draw[v], v); };
    for (int v = 0; v < graph_.size(); ++v) {
      missing[v] = static_cast<int>(graph_.predecessors[v].size());
      if (missing[v] == 0) push(v);
    }
    for (; !ready.empty();) {
      order.push_back(std::get<2>(ready.top()));
      ready.pop();
      for (const int w : graph_.successors[order.back()])
        if (--missing[w] == 0) push(w);
    }
    return order;
  }

  /// Another topological order, so that equal ranks are taken otherwise: by depth, shuffled within.
  void tie_break(std::vector<int>& order, std::uint64_t seed) const {
    std::vector<int> depth(graph_.size(), 0);
    for (const int v : graph_.order)
      for (const int w : graph_.successors[v]) depth[w] = std::max(depth[w], depth[v] + 1);
    Random(seed).shuffle(order);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return depth[a] < depth[b]; });
  }

  int earliest_finish(int v) {
    const int restricted = earliest_finish(v, true);
    return restricted >= 0 ? restricted : earliest_finish(v, false);
  }

  int earliest_finish(int v, bool only_usable) {
    int best = -1;
    Ticks finish = 0;
    for (int d = 0; d < costs_.device_count(); ++d) {
      if ((only_usable && !usable_[d]) || !loads_.fits(graph_.group[v], d)) continue;
      const Ticks length = costs_.execution(v, d);
      const Ticks end = slots_[d].earliest(inputs_ready(v, d), length) + length;
      if (best < 0 || end < finish) best = d, finish = end;
    }
    return best;
  }

  Ticks inputs_ready(int v, int d) const {
    Ticks last = 0, first = -1;
    for (const int u : graph_.predecessors[v]) {
      const Ticks arrival = end_[u] + costs_.transfer(u, loads_.device(u), d);
      last = std::max(last, arrival);
      if (loads_.device(u) != d && (first < 0 || arrival < first)) first = arrival;
    }
    return published_ ? std::max<Ticks>(first, 0) : last;
  }

  const GraphCosts& costs_;
  const OperatorGraph& graph_;
  const std::vector<char>& usable_;
  const bool published_;
  GraphLoads loads_;
  std::vector<GraphSlots> slots_;
  std::vector<Ticks> end_;
};

}  // namespace

GraphPartition partition_heft(const GraphCosts& costs, const std::vector<char>& usable,
                              const StrategyOptions& options) {
  return Heft(costs, usable, options.published_program).run(options.seed);
}

}  // namespace ostinato::graph
