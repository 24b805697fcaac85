// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rest of a placement when blocks on several devices are cut out of time (docs/bounds.md, M6).
//
//   for (const std::vector<int>& cut : sets_to_cut_out(graph)) {
//     const Rest rest = without(graph, cut, 0);            // takes no time for `cut`
//     // no schedule of n micro-batches ends before n * rest.cut_out + the makespan of the rest
//   }
//
// While a block on all devices runs, nothing else does: neither the chain that a micro-batch goes through nor
// the memory that it holds meanwhile comes to its end. So what the rest needs is needed beside that time.
// Only transfers go on, for as long as they last: what is cut may leave them time at the start of each such
// step.

#include <vector>

#include "search/checker/graph.h"

namespace ostinato::checker {

/// The most sets that are tried.
inline constexpr std::size_t kMostCuts = 4;

/// For every device and every w > 1, its blocks on at least w devices: different ones, in the order of the
/// devices, widest first, the first kMostCuts. Of each set all blocks share a device. O(devices * k^2).
std::vector<std::vector<int>> sets_to_cut_out(const Graph& graph);

/// The most times that are tried of a set.
inline constexpr std::size_t kMostStays = 8;

/// 0 and the times and transfers, if shorter than the longest of `cut`, that change what is cut out: rising,
/// the first kMostStays. O(edges).
std::vector<Nanoseconds> times_that_stay(const Graph& graph, const std::vector<int>& cut);

/// What is left when of each step of `cut` all beyond its first `stays` is cut out.
struct Rest {
  Placement placement;
  std::vector<Wide> longest;  ///< no transfer from a block takes longer
  Wide cut_out;               ///< nanoseconds of one micro-batch
};

/// O(blocks * cut + edges).
Rest without(const Graph& graph, const std::vector<int>& cut, Nanoseconds stays);

}  // namespace ostinato::checker
