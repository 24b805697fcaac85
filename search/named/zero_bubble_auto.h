// SPDX-License-Identifier: Apache-2.0
#pragma once
// The automatic schedule of Zero Bubble: one pass over the rounds of 1F1B with the real times, in which
// weight halves fill gaps and free memory.
//
//   const ZeroBubbleTimes times(chain, placement);
//   std::optional<ZeroBubbleOrder> order = zero_bubble_auto(times, 8, {16, 16, 16, 16});   // room per rank
//
// Source: Zero Bubble (Qi et al., ICLR 2024, arXiv 2401.10241), section 3.1, written from its description.
// One chunk per device, split backward.

#include <optional>
#include <vector>

#include "search/named/chain.h"

namespace ostinato {

/// What the heuristic knows of a rank.
struct ZeroBubbleRank {
  Nanoseconds forward = 0, input = 0, weight = 0;
  Nanoseconds from_before = 0;  ///< transfer of an activation from the rank before
  Nanoseconds from_after = 0;   ///< transfer of a gradient from the rank after
  Bytes taken = 0;              ///< by a forward
  Bytes input_change = 0;       ///< by an input half, mostly 0 or less
  Bytes weight_change = 0;      ///< by a weight half, mostly less than 0
};

std::vector<ZeroBubbleRank> zero_bubble_ranks(const Chain& chain, const Placement& placement);

enum class ZeroBubblePass { forward, input, weight };

/// The passes of one rank; the i-th of a kind is for micro-batch i.
using ZeroBubbleOrder = std::vector<ZeroBubblePass>;

/// The best of its variants by the longest span of a rank; nullopt where none stays within the room.
/// O(variants * ranks * micro-batches).
std::optional<std::vector<ZeroBubbleOrder>> zero_bubble_auto(const std::vector<ZeroBubbleRank>& ranks,
                                                             int micro_batches,
                                                             const std::vector<Bytes>& room);

}  // namespace ostinato
