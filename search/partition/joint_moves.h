// SPDX-License-Identifier: Apache-2.0
#pragma once
// The neighbours of a partition: what local search over partitions (joint_climb.h) tries next. Private to
// search/partition.
//
//   for (const Stages& next : neighbours(cuts.stages, devices, /*may_recompute=*/true, /*unlike=*/false)) ...

#include <vector>

#include "search/partition/partition_options.h"

namespace ostinato::joint {

using Stages = std::vector<Stage>;

/// Partitions of the same layers that differ in one thing: one stage gives a layer and another gets one, the
/// cuts between them moving along; two stages change their devices, or two devices, where these are `unlike`,
/// all of their stages; a stage goes to another device, is joined with its neighbour, or is divided in two; a
/// stage recomputes, keeps, or does the one in its first part and the other in its second. Sharded stages
/// stay as they are, and no device that has a stage loses its last one.
///
/// `stages` are runs of layers in the order of the model. Always in the same order; some may come twice.
/// O((stages + devices) * (stages + devices)) neighbours.
std::vector<Stages> neighbours(const Stages& stages, int devices, bool may_recompute, bool unlike);

}  // namespace ostinato::joint
