// SPDX-License-Identifier: Apache-2.0
#pragma once
// Proven lower bounds of a step of unequal micro-batches: U1 to U3 of docs/bounds.md. The checker has its own
// writing of each (search/checker/unequal.h), and tests compare the two.

#include <string>

#include "search/unequal/jobs.h"

namespace ostinato::unequal {

/// No schedule ends earlier. O(steps * (log steps + blocks on a device)).
Nanoseconds least_makespan(const Jobs& jobs);

/// Why no schedule exists (docs/bounds.md, U4), or "". `placement`: the jobs'.
std::string what_cannot_fit(const Jobs& jobs, const Placement& placement);

}  // namespace ostinato::unequal
