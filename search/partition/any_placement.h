// SPDX-License-Identifier: Apache-2.0
#pragma once
// A bound over all placements: whichever devices, chunks and orders, and whichever stages recompute, no step
// of these layers on these devices is shorter (docs/bounds.md, section D).
//
//   const AnyPlacement any = bound_any_placement(profile, options, plan.makespan);
//   gap = plan.makespan - any.lower_bound;  // what better cuts, maps and orders could still gain

#include "search/partition/joint.h"

namespace ostinato {

/// `reached`: the objective's value in some plan, above which the bound is not looked for. Of the makespan
/// and the span; the latency has none (lower_bound is 0). O(layers × devices), and counted work for the
/// packing.
AnyPlacement bound_any_placement(const Profile& profile, const JointOptions& options, Nanoseconds reached);

/// By layer, what a micro-batch takes at least, wherever the layer lies: on the kind of device, and with the
/// backward whole or in halves, that is fastest for it (w(l) of D1).
std::vector<Nanoseconds> least_times(const Profile& profile, const JointOptions& options);

}  // namespace ostinato
