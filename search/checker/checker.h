// SPDX-License-Identifier: Apache-2.0
#pragma once
// An independent check of a plan: it shares with the search nothing but the placement and plan types, and
// unrolled() (plan/sizes.h), which writes a step of unequal micro-batches as a placement of one.
//
//   CheckResult r = check_plan(plan, placement);
//   if (!r.ok()) for (const auto& line : r.failures) ...
//
// It re-checks the schedule (every step once, devices exclusive, dependencies with their transfers, memory at
// every instant), every figure that the plan claims, the repeating part, the lower bounds and the claims of
// optimality, each from the placement alone.

#include <cstdint>
#include <string>
#include <vector>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato {

struct CheckResult {
  std::vector<std::string> failures;  ///< in words, at most 20; empty: the plan holds
  std::vector<std::string> passed;    ///< what was checked and holds, in words
  bool ok() const { return failures.empty(); }
};

/// Work (checker/exhaust.h) that is spent on a bound which no statement of docs/bounds.md gives: about ten
/// seconds.
inline constexpr std::int64_t kMostExhaustionWork = 200'000'000;

CheckResult check_plan(const Plan& plan, const Placement& placement,
                       std::int64_t most_work = kMostExhaustionWork);

/// The same without what is claimed of other schedules: bounds, optimality and capacity. What draws, replays
/// or runs a plan asks this; only `ostinato verify` asks the whole. O(steps log steps + dependencies).
CheckResult check_schedule(const Plan& plan, const Placement& placement);

/// Throws InputError with the failures of check_schedule(); the files are named in it.
void refuse_unless_it_runs(const Plan& plan, const Placement& placement, const std::string& plan_file,
                           const std::string& placement_file);

}  // namespace ostinato
