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

Placement without(const Graph& graph, const std::vector<int>& cut) {
  Placement rest = graph.placement();
  rest.link = {};
  rest.links.clear();
  for (int b = 0; b < graph.blocks(); ++b) {
    const bool stays =
        std::all_of(cut.begin(), cut.end(), [&](int c) { return c != b && graph.conflict(b, c); });
    if (!stays) rest.blocks[static_cast<std::size_t>(b)].time = 0;
  }
  return rest;
}

}  // namespace ostinato::checker
