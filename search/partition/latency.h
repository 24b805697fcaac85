// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stages for a short latency: from the first forward of one micro-batch to its last backward, or, of an
// inference, to its answer.
//
//   StageCuts cuts = cut_for_latency(profile, options, true);
//   Placement placement = place_stages(profile, options, cuts.stages);
//
// What balances the devices is not what makes one micro-batch quick. Layers that follow each other gain
// nothing from another device and pay for a transfer, there and back; only branches run at the same time. So
// the layers become an operator graph, in which the forward and the backward of a layer share a device, and
// best.h assigns it. Consecutive layers on one device become a stage unless that delays a micro-batch. If
// every device must have a stage (a pipeline rank with nothing to train is refused), an idle one gets the
// part of a stage that is cheapest to move.
//
// A device may hold several stages, in any order. The stages come from a local search: nothing is proved.

#include "search/partition/partition_options.h"

namespace ostinato {

/// `options.chunks`, `layout`, `sharded` and `recompute` do not count. `all_devices`: none may be idle. The
/// search counts with the estimates of layer_operators.h; what comes out is timed layer by layer. O(work of
/// best.h + layers * (layers + edges)). Throws InputError as check_partition(), for more devices than
/// layers where all are to be used, for more than kMostLatencyLayers layers, and where no assignment was
/// found that fits the memory.
StageCuts cut_for_latency(const Profile& profile, const PartitionOptions& options, bool all_devices);

inline constexpr int kMostLatencyLayers = 1024;

}  // namespace ostinato
