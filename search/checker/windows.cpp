// SPDX-License-Identifier: Apache-2.0
#include "search/checker/windows.h"

#include "search/checker/least_end.h"

namespace ostinato::checker {
namespace {

/// Sums of times and transfers of all micro-batches stay below this.
constexpr Wide kLongest = static_cast<Wide>(1) << 60;

}  // namespace

bool Windows::affordable(const Graph& graph, int n) {
  Wide longest = 0, edges = 0;
  graph.walk(false, [&](int b, const std::vector<Graph::Edge>& inputs) {
    longest += graph.block(b).time;
    for (const Graph::Edge& edge : inputs) longest += edge.transfer;
    edges += static_cast<Wide>(inputs.size());
  });
  const Wide blocks = graph.blocks();
  Wide sets = 0;
  for (int d = 0; d < graph.devices(); ++d) {
    const auto here = static_cast<Wide>(graph.on_device(d).size());
    sets += here * here * here;
  }
  return sets <= kMostSets && longest <= kLongest / n && blocks * n <= kMostSteps &&
         blocks * (blocks + edges) <= kMostPaths;
}

Windows::Windows(const Graph& graph, int n, int origin)
    : graph_(graph), n_(n), origin_(origin), blocks_(graph.blocks()), known_(affordable(graph, n)) {
  if (!known_) return;
  for (const bool backwards : {false, true}) {
    EarliestStarts earliest = earliest_starts(graph, n, {backwards, origin});
    work_ += earliest.work;
    (backwards ? tail_ : head_) = std::move(earliest.start);
  }
}

Nanoseconds Windows::least_end_of(int device) const {
  std::vector<Task<Nanoseconds>> tasks;
  for (const int b : graph_.on_device(device)) {
    for (int i = 0; i < n_; ++i) {
      if (earliest(b, i) == kUnknown || after(b, i) == kUnknown) continue;
      tasks.push_back({earliest(b, i), graph_.block(b).time, after(b, i)});
    }
  }
  return least_end(std::move(tasks));
}

}  // namespace ostinato::checker
