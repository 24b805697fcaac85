// SPDX-License-Identifier: Apache-2.0
#include "search/checker/fits.h"

#include <algorithm>

#include "search/checker/area.h"

namespace ostinato::checker {
namespace {

/// I1: while some block on the device runs, a micro-batch holds more than there is room for.
bool too_much_at_once(const Graph& graph, int device, Wide room) {
  const Matching matching = match(graph, device);
  if (!matching.complete) return false;
  std::vector<Wide> used(graph.blocks(), 0);
  for (const int b : graph.on_device(device)) used[b] = graph.workspace(b);
  for (const Held& h : matching.held) {
    const std::vector<Wide> from_taker = graph.distances_from(h.taker);
    std::vector<char> to_giver(used.size(), h.giver < 0 ? 1 : 0);
    if (h.giver >= 0) to_giver[h.giver] = 1;
    graph.walk(true, [&](int b, const std::vector<Graph::Edge>& followers) {
      for (const Graph::Edge& follower : followers) to_giver[b] |= to_giver[follower.block];
    });
    for (const int b : graph.on_device(device)) {
      if (from_taker[b] != Graph::kNone && to_giver[b] != 0) used[b] += h.bytes;
    }
  }
  const auto& here = graph.on_device(device);
  return std::any_of(here.begin(), here.end(),
                     [&](int b) { return graph.block(b).time > 0 && used[b] > room; });
}

}  // namespace

bool cannot_fit(const Graph& graph, int n) {
  const bool matched = can_be_matched(graph);
  for (int d = 0; d < graph.devices(); ++d) {
    const Device& device = graph.placement().devices[d];
    if (device.memory == kUnlimited) continue;
    const Wide room = static_cast<Wide>(device.memory) - device.static_memory;
    Wide kept = 0;
    for (const int b : graph.on_device(d)) kept += graph.block(b).memory;
    if (room < 0 || kept * n > room || (matched && too_much_at_once(graph, d, room))) return true;
  }
  return false;
}

}  // namespace ostinato::checker
