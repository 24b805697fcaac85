// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether layers fit the memory of the devices at all, in whatever stages. Private to search/partition.
//
//   if (const auto stages = stages_that_fit(profile, options)) place_stages(profile, options, *stages);
//   if (const std::string proof = why_nothing_fits(profile, options); !proof.empty()) ...

#include <optional>
#include <string>
#include <vector>

#include "search/partition/joint.h"

namespace ostinato {

/// Stages that fit the memory with one micro-batch each. Any device may have any layers, and each has some:
/// layers by falling memory, each on the first device with room for it (first fit decreasing); if that fails,
/// on other devices, for counted work. A stage ends wherever the device changes. All recompute unless that is
/// `never`. None is sharded. nullopt: none were found.
std::optional<std::vector<Stage>> stages_that_fit(const Profile& profile, const PartitionOptions& options);

/// A proof that no placement fits, whatever its stages, or "": a layer that may not be sharded needs more
/// than any device has, or parameters, gradients and optimizer state cannot be divided among the devices.
std::string why_nothing_fits(const Profile& profile, const JointOptions& options);

}  // namespace ostinato
