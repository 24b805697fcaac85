// SPDX-License-Identifier: Apache-2.0
#pragma once
// What people are told of processors that devices share (placement.h, Host), the same in every output.
//
//   shared_cores_text(predicted_makespan(plan, placement), placement)   // "25 s (4 devices share 2 cores)"

#include <string>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato {

/// "2 devices share 1 core".
std::string sharing_of(const Host& host);

/// `predicted`, and who shares what; "" where no devices share processors.
std::string shared_cores_text(Nanoseconds predicted, const Placement& placement);

/// That the processors hold up the plan, and how much; "" where sharing them costs nothing. `predicted`:
/// predicted_makespan(). The micro-batches may differ in size.
std::string held_up_by_cores(Nanoseconds predicted, const Plan& plan, const Placement& placement);

}  // namespace ostinato
