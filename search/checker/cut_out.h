#pragma once
// The rest of a placement when blocks on several devices are cut out of time (docs/bounds.md, M7).
//
//   for (const std::vector<int>& cut : sets_to_cut_out(graph)) {
//     const Placement rest = without(graph, cut);          // takes no time for `cut`
//     // no schedule of n micro-batches ends before n * (times of `cut`) + makespan of `rest`
//   }
//
// While a block on all devices runs, nothing else does: neither the chain that a micro-batch goes through nor
// the memory that it holds meanwhile comes to its end. So what the rest needs is needed beside that time.

#include <vector>

#include "search/checker/graph.h"

namespace ostinato::checker {

/// The most sets that are tried.
inline constexpr std::size_t kMostCuts = 4;

/// For every device and every w > 1, its blocks on at least w devices: different ones, in the order of the
/// devices, widest first, the first kMostCuts. Of each set all blocks share a device. O(devices * k^2).
std::vector<std::vector<int>> sets_to_cut_out(const Graph& graph);

/// The placement in which the blocks of `cut`, all those that can run beside one of them, and all transfers
/// take no time. O(blocks * cut + edges).
Placement without(const Graph& graph, const std::vector<int>& cut);

}  // namespace ostinato::checker
