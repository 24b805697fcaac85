// SPDX-License-Identifier: Apache-2.0
#include "search/checker/spacing.h"

#include <map>
#include <set>

#include "search/checker/area.h"

namespace ostinato::checker {
namespace {

constexpr Wide kMostWork = 1 << 28;

/// What a micro-batch has on the device from before the block starts until after it ends.
struct Around {
  Bytes bytes;
  Wide before;  ///< from when it is taken to the end of the block
  Wide after;   ///< from the start of the block to when it is given back
};

/// `length` of what is held: whoever is no further away than `long_enough` holds all that is no shorter.
void add(const Graph& graph, int block, Wide free, const std::vector<Around>& around, Wide Around::*length,
         std::vector<Apart>& result) {
  std::set<Wide> lengths;
  for (const Around& one : around) lengths.insert(one.*length);
  for (const Wide long_enough : lengths) {
    Wide bytes = 0;
    for (const Around& one : around) bytes += one.*length >= long_enough ? one.bytes : 0;
    const Wide runs = free / bytes + 1;
    if (long_enough >= runs * graph.block(block).time) result.push_back({block, runs, long_enough});
  }
}

}  // namespace

std::vector<Apart> kept_apart(const Graph& graph, int device) {
  std::vector<Apart> result;
  const Device& limits = graph.placement().devices[device];
  if (limits.memory == kUnlimited || limits.memory <= limits.static_memory) return result;
  const Matching matching = match(graph, device);
  if (!matching.complete) return result;
  std::map<int, std::vector<Wide>> from;  // by block that takes
  for (const Held& held : matching.held)
    if (!from.contains(held.taker)) from[held.taker] = graph.distances_from(held.taker);
  for (const int b : graph.on_device(device)) {
    if (graph.workspace(b) <= 0) continue;
    const std::vector<Wide> after = graph.distances_from(b);
    Wide free = static_cast<Wide>(limits.memory) - limits.static_memory - graph.workspace(b);
    std::vector<Around> around;
    for (const Held& held : matching.held) {
      if (held.giver < 0 || after[held.giver] == Graph::kNone) continue;
      const Wide before = from[held.taker][b];
      if (before == Graph::kNone) continue;
      around.push_back({held.bytes, before, after[held.giver]});
      free -= held.bytes;
    }
    if (free < 0) continue;
    add(graph, b, free, around, &Around::before, result);
    add(graph, b, free, around, &Around::after, result);
  }
  return result;
}

bool can_be_kept_apart(const Graph& graph) {
  Wide work = 0;
  for (int d = 0; d < graph.devices(); ++d) {
    if (graph.placement().devices[d].memory == kUnlimited) continue;
    for (const int b : graph.on_device(d)) work += graph.workspace(b) > 0 ? graph.size() : 0;
  }
  return work <= kMostWork;
}

}  // namespace ostinato::checker
