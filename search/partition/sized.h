// SPDX-License-Identifier: Apache-2.0
#pragma once
// Micro-batches of other sizes than the profile's.
//
//   const std::vector<MicroBatch> step = sized(profile, placement, {512, 2048}, 1024);

#include <vector>

#include "search/plan/sizes.h"
#include "search/profile/profile.h"

namespace ostinato {

/// Micro-batches of a placement with stages that say their layers. Memory and messages grow in proportion to
/// `size` / `of`. So do times of layers, but where the profile was measured at two sizes or more
/// (Profile::sizes): then they follow the straight lines between these, and beyond them the lines through the
/// outermost two. What a block takes beside its layers (RankCost) stays. Fractional sizes count in 1024ths.
/// Throws InputError where the placement has layers that the profile lacks.
std::vector<MicroBatch> sized(const Profile& profile, const Placement& placement,
                              const std::vector<double>& sizes, double of);

}  // namespace ostinato
