// SPDX-License-Identifier: Apache-2.0
#pragma once
// When the repeating part of a plan runs, by device: before it is warm-up, behind it cool-down.
//
//   for (const RepetendSpan& span : repetend_spans(plan, placement))
//     if (span.count > 0) mark(span.begin, span.end);

#include <vector>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato {

/// From the first start to the last end of what repeats on a device with the plan's period.
struct RepetendSpan {
  Nanoseconds begin = 0;
  Nanoseconds end = 0;
  int count = 0;  ///< whole periods in it; 0: there is no time at which all of the device's blocks repeat
};

/// A block of every `unroll`-th micro-batch starts a period after the one before it: over the micro-batches
/// that Plan::steady_state names, and as far to both sides as that holds. The span of a device is where this
/// is true of all its blocks. O(steps).
std::vector<RepetendSpan> repetend_spans(const Plan& plan, const Placement& placement);

}  // namespace ostinato
