// SPDX-License-Identifier: Apache-2.0
#include "search/checker/area.h"

#include <algorithm>
#include <map>

namespace ostinato::checker {
namespace {

/// A block that takes and one that gives back, with the longest time from the start of the one to the end of
/// the other.
struct Pair {
  Wide distance;
  int taker;
  int giver;
  int givers = 0;  ///< that a path leads to from the taker
};

/// All pairs with a path, in the order in which they are matched first.
std::vector<Pair> pairs_on(const Graph& graph, int device) {
  std::vector<Pair> pairs;
  for (const int a : graph.on_device(device)) {
    if (graph.block(a).memory <= 0) continue;
    const std::vector<Wide> distance = graph.distances_from(a);
    const std::size_t first = pairs.size();
    for (const int c : graph.on_device(device)) {
      if (graph.block(c).memory < 0 && distance[c] != Graph::kNone) pairs.push_back({distance[c], a, c});
    }
    for (std::size_t i = first; i < pairs.size(); ++i)
      pairs[i].givers = static_cast<int>(pairs.size() - first);
  }
  std::sort(pairs.begin(), pairs.end(), [](const Pair& x, const Pair& y) {
    if (x.distance != y.distance) return x.distance > y.distance;
    return x.taker != y.taker ? x.taker < y.taker : x.giver < y.giver;
  });
  return pairs;
}

/// Sums up what is held between the start of one block and the end of another.
class Sum {
 public:
  explicit Sum(const Graph& graph) : graph_(graph) { area_.before = area_.after = kUnbounded; }

  void add(Bytes bytes, Wide time, int first, int last) {
    area_.bytes_time += static_cast<Wide>(bytes) * time;
    area_.before = std::min(area_.before, graph_.head(first));
    area_.after = std::min(area_.after, graph_.tail(last));
  }
  const Area& area() const { return area_; }

 private:
  const Graph& graph_;
  Area area_;
};

Matching match_in_order(const Graph& graph, int device, const std::vector<Pair>& pairs) {
  std::map<int, Bytes>
      left;  // of each block on the device: bytes taken or given back that are not matched yet
  for (const int b : graph.on_device(device)) {
    left[b] = std::max(graph.block(b).memory, -graph.block(b).memory);
  }
  Matching result;
  for (const Pair& pair : pairs) {
    const Bytes matched = std::min(left[pair.taker], left[pair.giver]);
    if (matched == 0) continue;
    left[pair.taker] -= matched;
    left[pair.giver] -= matched;
    result.held.push_back({pair.taker, pair.giver, matched, pair.distance});
  }
  for (const auto& [b, bytes] : left) {
    if (bytes == 0) continue;
    if (graph.block(b).memory < 0) {
      result.complete = false;
    } else {
      result.held.push_back({b, -1, bytes, 0});
    }
  }
  return result;
}

}  // namespace

Matching match(const Graph& graph, int device) {
  std::vector<Pair> pairs = pairs_on(graph, device);
  Matching longest_first = match_in_order(graph, device, pairs);
  if (longest_first.complete) return longest_first;
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& x, const Pair& y) { return x.givers < y.givers; });
  return match_in_order(graph, device, pairs);
}

bool can_be_matched(const Graph& graph) {
  Wide work = 0;
  for (int d = 0; d < graph.devices(); ++d) {
    if (graph.placement().devices[d].memory == kUnlimited) continue;
    Wide takers = 0, givers = 0;
    for (const int b : graph.on_device(d)) {
      takers += graph.block(b).memory > 0 ? 1 : 0;
      givers += graph.block(b).memory < 0 ? 1 : 0;
    }
    work += takers * (graph.size() + 32 * givers);
  }
  return work <= kMostMatching;
}

Area area_of(const Graph& graph, int device) {
  const Device& limits = graph.placement().devices[device];
  if (limits.memory == kUnlimited || limits.memory <= limits.static_memory) return {};
  const Matching matching = match(graph, device);
  if (!matching.complete) return {};
  Sum sum(graph);
  for (const Held& held : matching.held) {
    if (held.giver >= 0) sum.add(held.bytes, held.distance, held.taker, held.giver);
  }
  for (const int b : graph.on_device(device)) {
    if (graph.workspace(b) > 0) sum.add(graph.workspace(b), graph.block(b).time, b, b);
  }
  Area area = sum.area();
  area.room = static_cast<Wide>(limits.memory) - limits.static_memory;
  return area;
}

Wide time_of(const Area& area, Wide n) {
  if (area.bytes_time == 0) return 0;
  const Wide whole = area.bytes_time / area.room;  // divided first: the product may not fit
  if (whole >= kUnbounded / n) return kUnbounded;
  const Wide rest = area.bytes_time % area.room * n;
  return whole * n + rest / area.room + (rest % area.room != 0 ? 1 : 0);
}

}  // namespace ostinato::checker
