// SPDX-License-Identifier: Apache-2.0
#pragma once
// The split that nobody computed: as many layers on every device as on any other, whatever they cost.

#include "search/partition/partition_options.h"

namespace ostinato {

/// Stages with ceil or floor(layers / stages) layers each, the longer ones first, none of them sharded. What
/// a plan is compared with; memory is not looked at, and nothing is proved of `busiest`. O(layers). Throws
/// InputError for more stages than layers, or none.
StageCuts cut_evenly(const Profile& profile, const PartitionOptions& options);

/// place_stages() of cut_evenly().
Placement even_split(const Profile& profile, const PartitionOptions& options);

}  // namespace ostinato
