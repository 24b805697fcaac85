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

/// Stages that hold one micro-batch each within the memory, any device having any layers, and every device
/// some: layers by falling memory, each on the first device with room for it (first fit decreasing), and
/// where that leads nowhere, on others, for counted work. They are cut wherever the device changes. All
/// recompute unless that is `never`. None is sharded. nullopt: none were found.
std::optional<std::vector<Stage>> stages_that_fit(const Profile& profile, const PartitionOptions& options);

/// A proof that no placement fits, whatever its stages, or "": a layer that may not be sharded needs more
/// than any device has, or parameters, gradients and optimizer state cannot be divided among the devices.
std::string why_nothing_fits(const Profile& profile, const JointOptions& options);

}  // namespace ostinato
