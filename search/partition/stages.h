#pragma once
// From stages to a placement.

#include "search/partition/partition_options.h"
#include "search/placement/placement.h"

namespace ostinato {

/// Devices, links, and a forward and a backward block for every stage: "s0.F", "s0.B" (or "s0.I", "s0.W"
/// where the backward is split; that of a sharded stage is whole). An inference has the forwards alone. A
/// block waits for the blocks of the stages that its layers read from, with the bytes that they read.
///
/// [[stages]] says which layers each stage runs; in several runs where those of a stage over a graph are
/// no run in the order of the profile. The stages must cover every layer once, and come in an order in which
/// a stage stands behind those that it reads from.
Placement place_stages(const Profile& profile, const PartitionOptions& options,
                       const std::vector<ModelStage>& stages);

}  // namespace ostinato
