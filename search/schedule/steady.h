// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the part of a schedule that repeats.

#include <vector>

#include "search/bounds/bounds.h"
#include "search/plan/plan.h"

namespace ostinato {

/// The longest repeating part (SteadyState) with up to kLargestUnroll micro-batches per repetend; repetitions
/// overlap (docs/bounds.md, "Period"); ties go to the smaller unroll. count == 0 if there is none.
/// O(kLargestUnroll * steps).
SteadyState find_steady_state(const Instance& instance, int micro_batches,
                              const std::vector<ScheduledBlock>& schedule);

inline constexpr int kLargestUnroll = 8;

}  // namespace ostinato
