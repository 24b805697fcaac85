// SPDX-License-Identifier: Apache-2.0
#pragma once
// Splits made without a search: the same number of layers on every device, or the split of a run.

#include <vector>

#include "search/partition/partition_options.h"

namespace ostinato {

/// Stages with ceil or floor(layers / stages) layers each, the longer ones first, none of them sharded. What
/// a plan is compared with; memory is not looked at, and nothing is proved of `busiest`. O(layers). Throws
/// InputError for more stages than layers, or none.
StageCuts cut_evenly(const Profile& profile, const PartitionOptions& options);

/// With this many layers each, none of them 0. Throws InputError where these are not the profile's layers or
/// the devices' number.
StageCuts cut_as(const Profile& profile, const PartitionOptions& options, const std::vector<int>& layers);

/// place_stages() of cut_evenly().
Placement even_split(const Profile& profile, const PartitionOptions& options);

}  // namespace ostinato
