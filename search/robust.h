// SPDX-License-Identifier: Apache-2.0
#pragma once
// Among schedules that are as short, the one that times which vary stretch the least.
//
//   options.robust_ppm = 300'000;                       // blocks and micro-batches vary by up to 30 %
//   Plan plan = in_variation(placement, options, {shortest_plan(placement, options)});
//
// A plan is made for the times of a profile; in the run kernels take longer now and then, and micro-batches
// have sequences of different length. The device orders stay as planned, so what a late block holds up
// depends on them: often a forward more in flight costs nothing in the plan, and takes up what varies.

#include <vector>

#include "search/placement/placement.h"
#include "search/plan/plan.h"
#include "search/portfolio/search_options.h"

namespace ostinato {

/// The replays by which two plans are compared: `runs` in which each block varies by up to `ppm`, and as many
/// in which all blocks of a micro-batch vary alike. Sorted makespans. O(runs * (steps + dependencies)).
std::vector<Nanoseconds> varied_makespans(const Placement& placement, const Plan& plan, std::int64_t ppm,
                                          int runs, std::uint64_t seed);

/// The best of `plans`, and of what exchanges of neighbours on a device make of each of them: the one with
/// the least sum of the longest eighth of its replays. Its makespan is at most kRobustDistance longer than
/// the shortest of `plans`, whose bounds it claims; no device holds more than it has. The same options give
/// the same plan. Hill climbing, within `options`' effort and limits; the last of `plans`, with
/// Plan::search::robust::why_not, where a block takes no time, devices share cores, the plan minimises
/// something but the makespan, or has over kMostRobustSteps steps.
Plan in_variation(const Placement& placement, const SearchOptions& options, std::vector<Plan> plans);

inline constexpr std::int64_t kMostRobustSteps = 20'000;

}  // namespace ostinato
