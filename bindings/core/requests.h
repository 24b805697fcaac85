// SPDX-License-Identifier: Apache-2.0
#pragma once
// From options to what the search and the partition take.
//
//   Options options({"plan", "partition", "search"});
//   JointOptions wanted = joint_options(options, on_devices(4, "40GiB"), 8, profile);

#include <string>
#include <vector>

#include "bindings/core/options.h"
#include "search/partition/degrees.h"
#include "search/partition/joint.h"
#include "search/partition/partition_options.h"
#include "search/profile/profile.h"
#include "search/search.h"
#include "search/simulate/simulate.h"
#include "search/unequal/unequal.h"

namespace ostinato::core {

/// From the section [search]; `threads` 0 becomes as many as the machine has.
SearchOptions search_options(const Options& options, int micro_batches);

/// For micro-batches of unequal size: effort, seed, time limit and stop of these.
UnequalOptions unequal_options(const SearchOptions& options);

/// From the section [simulate].
SimulateOptions simulate_options(const Options& options);

/// Devices that are all alike. `memory` of each: "40GiB" or "unlimited". Throws UsageError for fewer than
/// one or more than 65,536, and for a memory without unit.
PartitionOptions on_devices(int count, const std::string& memory);

/// Those of a device file, with the profiles that its kinds name. `memory` must be "unlimited": they have
/// their own. Throws UsageError, and InputError for such a profile.
PartitionOptions on_cluster(Cluster cluster, const std::string& memory);

/// Devices that are alike, on consecutive hosts: this many of them share this many cores.
using SharedCores = std::pair<int, int>;
PartitionOptions on_shared_cores(int count, const std::string& memory, const std::vector<SharedCores>& hosts);

/// For `partition`, from its section; `on` says on which devices, 0 micro-batches: as many as stages. Throws
/// UsageError where options contradict each other, InputError for a layer to shard that is not there.
PartitionOptions cut_options(const Options& options, PartitionOptions on, int micro_batches,
                             const Profile& profile);

/// For `plan`, from [plan], [partition] and [search]. Throws as cut_options().
JointOptions joint_options(const Options& options, PartitionOptions on, int micro_batches,
                           const Profile& profile);

/// The same for a model that was profiled in several numbers of slices, which is asked for them by being
/// given so. What is returned points to `profiles`.
std::vector<SlicedProfile> sliced_options(const Options& options, const PartitionOptions& on,
                                          int micro_batches, const std::vector<Profile>& profiles);

/// Throws InputError for more steps than a search can hold, or times that sum up beyond int64. `file` stands
/// in the message.
void check_size(const Placement& placement, int micro_batches, const std::string& file);

}  // namespace ostinato::core
