#pragma once
// A plan for more micro-batches than it was searched for: what a server runs, to which requests come without
// end.
//
//   Plan plan = lengthened(read_plan(...), placement, 512);      // of a plan for 8
//
// Its warm-up and its cool-down stay, and the repetend between them is repeated (search/schedule/stretch.h):
// so the pipeline does not run empty after every 8. A plan in which nothing repeats is repeated as a whole.

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato {

/// At least `micro_batches`; the plan as it is where it has as many. `plan` must be a valid one of
/// `placement`, which is as written (modes are taken here). Orders and starts hold as before; figures but for
/// the makespan are those of the shorter plan, and nothing is proved of this one. Throws InputError for more
/// than kMostLengthenedSteps steps. O(steps of the result).
Plan lengthened(const Plan& plan, const Placement& placement, int micro_batches);

inline constexpr std::int64_t kMostLengthenedSteps = std::int64_t{1} << 24;

}  // namespace ostinato
