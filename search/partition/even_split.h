#pragma once
// The split that nobody computed: as many layers on every device as on any other, whatever they cost.

#include "search/partition/partition_options.h"

namespace ostinato {

/// The placement with ceil or floor(layers / stages) layers in each stage, the longer ones first, none of
/// them sharded. It serves as the baseline of a comparison: memory limits are written into it and not looked
/// at. O(layers). Throws InputError for more stages than layers, or none.
Placement even_split(const Profile& profile, const PartitionOptions& options);

}  // namespace ostinato
