// SPDX-License-Identifier: Apache-2.0
#include "search/checker/cut_out.h"

#include <algorithm>
#include <functional>
#include <set>

namespace ostinato::checker {

std::vector<std::vector<int>> sets_to_cut_out(const Graph& graph) {
  std::vector<std::vector<int>> sets;
  for (int d = 0; d < graph.devices(); ++d) {
    std::set<std::size_t, std::greater<>> widths;
    for (const int b : graph.on_device(d)) widths.insert(graph.block(b).devices.size());
    for (const std::size_t width : widths) {
      if (width < 2 || sets.size() == kMostCuts) break;
      std::vector<int> cut;
      for (const int b : graph.on_device(d)) {
        if (graph.block(b).devices.size() >= width) cut.push_back(b);
      }
      if (std::find(sets.begin(), sets.end(), cut) == sets.end()) sets.push_back(std::move(cut));
    }
  }
  return sets;
}

std::vector<Nanoseconds> times_that_stay(const Graph& graph, const std::vector<int>& cut) {
  Nanoseconds longest = 0;
  std::set<Nanoseconds> times = {0};
  for (const int b : cut) {
    times.insert(graph.block(b).time);
    longest = std::max(longest, graph.block(b).time);
  }
  graph.walk(false, [&](int, const std::vector<Graph::Edge>& inputs) {
    for (const Graph::Edge& input : inputs) {
      if (input.transfer < longest) times.insert(static_cast<Nanoseconds>(input.transfer));
    }
  });
  times.erase(times.lower_bound(longest), times.end());
  std::vector<Nanoseconds> result(times.begin(), times.end());
  if (result.size() > kMostStays) result.resize(kMostStays);
  return result;
}

Rest without(const Graph& graph, const std::vector<int>& cut, Nanoseconds stays) {
  Rest rest{graph.placement(), std::vector<Wide>(graph.blocks(), stays), 0};
  for (int b = 0; b < graph.blocks(); ++b) {
    Nanoseconds& time = rest.placement.blocks[b].time;
    if (time == 0) rest.longest[b] = 0;  // it may end while another runs
    if (std::find(cut.begin(), cut.end(), b) != cut.end()) {
      rest.cut_out += std::max<Nanoseconds>(0, time - stays);
      time = std::min(time, stays);
    } else if (!std::all_of(cut.begin(), cut.end(), [&](int c) { return graph.conflict(b, c); })) {
      rest.longest[b] = time = 0;
    }
  }
  return rest;
}

}  // namespace ostinato::checker
