#pragma once
// From cuts to a placement. Private to search/partition.

#include "search/partition/chain.h"
#include "search/placement.h"

namespace ostinato::chain {

/// Device of every stage, in the order of the chain.
std::vector<int> devices_of_stages(const PartitionOptions& options);

/// Devices, links, stages and blocks. `ends` as in ChainCuts.
Placement build_placement(const Profile& profile, const PartitionOptions& options,
                          const std::vector<int>& ends);

}  // namespace ostinato::chain
