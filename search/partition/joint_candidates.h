// SPDX-License-Identifier: Apache-2.0
#pragma once
// What joint.h chooses from. Private to search/partition.

#include "search/partition/joint.h"

namespace ostinato::joint {

struct DeviceOrder {
  std::string name;          ///< of the kinds; "": as listed
  std::vector<int> devices;  ///< all of them
};

/// As listed; and unlike devices grouped by kind. Memory is needed more at the front, a transfer costs more
/// between some, and some are too slow to be worth one. With one chunk a device on all of them the order is
/// found as the stages are (chain::best_kind_order).
std::vector<DeviceOrder> device_orders(const Cluster& cluster);

/// Every candidate that keeps its activations, on all devices. `graph`: the profile has branches. What 1F1B
/// runs on is listed without lanes, too: each lane is a stage more, with what that takes (Profile::rank).
std::vector<Candidate> list_candidates(const Profile& profile, const JointOptions& options);

/// The same shape with recomputation where it is needed; `how`: needed or partly.
Candidate recomputing(const Candidate& candidate, Recompute how);

/// Of the candidate that `moved` was made from by moving layers: its own, or where stages are on other
/// devices than before, how many there are.
std::string moved_name(const Candidate& from, const Candidate& moved);

/// The same with this many percent of the memory of every device.
PartitionOptions in_part_of_memory(PartitionOptions options, int percent);

/// Numbers of devices, fewer than all, on which one chunk each is tried; falling.
std::vector<int> fewer_counts(const Profile& profile, const JointOptions& options);

/// One chunk on the first `devices` of this order.
Candidate on_fewer(const JointOptions& options, const DeviceOrder& order, int devices, bool split);

/// What is tried: backwards whole (false), split (true), or both.
std::vector<bool> splits(const Profile& profile, const JointOptions& options);

/// Restrictions without which the list, or the `tried` ones that were made from it, would be another.
Restrictions that_cut(const Profile& profile, const JointOptions& options,
                      const std::vector<Candidate>& tried);

/// Why the shape does not exist for this model, or "".
std::string too_few_layers(const Profile& profile, const Candidate& candidate);

/// No schedule of this shape is shorter: N times what its busiest device takes at least. O(layers * kinds).
Nanoseconds simple_bound(const Profile& profile, const Candidate& candidate, int micro_batches);

}  // namespace ostinato::joint
