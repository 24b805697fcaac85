// SPDX-License-Identifier: Apache-2.0
#pragma once
// The checker's own proof of `any_placement` (docs/bounds.md, D), from the profile and the devices. It shares
// nothing with search/partition.
//
//   const CheckResult result = check_any_placement(plan, file, profile, alike(4, kUnlimited));

#include <cstdint>

#include "search/checker/checker.h"
#include "search/placement/placement_toml.h"
#include "search/profile/cluster.h"

namespace ostinato {

/// Why the claim is false whatever the profile: the plan itself takes less. "" where it does not, or claims
/// nothing.
std::string refuted_by_plan(const Plan& plan);

/// The devices that a plan's claim assumes by default: all like the first of its placement.
Cluster devices_of_claim(const Plan& plan, const Placement& placement);

/// `most_work`: ways to fill a device that are tried. Fails where the plan claims nothing, or what these
/// files do not prove. O(layers × devices) and that work.
CheckResult check_any_placement(const Plan& plan, const PlacementFile& file, const Profile& profile,
                                const Cluster& cluster, std::int64_t most_work = 20'000'000);

}  // namespace ostinato
