// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan for more micro-batches than it was searched for: what a server runs, to which requests come without
// end.
//
//   Plan plan = lengthened(read_plan(...), placement, 512);      // of a plan for 8
//
// Its warm-up and its cool-down stay, and the repetend between them is repeated (search/schedule/stretch.h):
// so the pipeline does not run empty after every 8. A plan in which nothing repeats is no part of a longer
// one (of forwards the quicker stages run ahead, further and further): then the least repetend that is found
// for the placement (search/repetend/repetend.h) is repeated instead, from the first micro-batch to the last.

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato {

/// At least `micro_batches`; the plan as it is if it has as many. `plan` must be a valid one of `placement`.
/// All figures but the makespan are the shorter plan's, and nothing is proved of this one. Throws InputError
/// for more than kMostLengthenedSteps steps, and where no repetend is found. O(steps of the result), and
/// find_repetend().
Plan lengthened(const Plan& plan, const Placement& placement, int micro_batches);

inline constexpr std::int64_t kMostLengthenedSteps = std::int64_t{1} << 24;

}  // namespace ostinato
