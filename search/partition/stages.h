// SPDX-License-Identifier: Apache-2.0
#pragma once
// From stages to a placement.

#include "search/partition/partition_options.h"
#include "search/placement/placement.h"
#include "search/placement/placement_toml.h"

namespace ostinato {

/// Devices, links, and a forward and a backward block for every stage: "s0.F", "s0.B" (or "s0.I", "s0.W"
/// where the backward is split; it is whole for a sharded stage, and for one with a layer without halves). An
/// inference has the forwards alone. Layers on a lane of a device (Profile, PartitionOptions::lanes) are
/// blocks there, "s0:network.F", and end the stage before them. They are computed with their stage if the
/// caller's stage begins with them, is sharded or (LanesOf::keeping) recomputes. A block waits for the blocks
/// of the stages that its layers read from, with the bytes that they read.
///
/// [[stages]] says which layers each stage runs; as several runs if a stage over a graph is not one run in
/// the profile's order. The stages must cover every layer once, each after the stages that it reads from.
Placement place_stages(const Profile& profile, const PartitionOptions& options,
                       const std::vector<Stage>& stages);

/// What the placement's file says of the profiled model; with its layers if the profile can tell them apart.
ModelFacts facts_of(const Profile& profile, const PartitionOptions& options,
                    const std::vector<Stage>& stages);

/// Whether every device has the memory for the end of a step, when its optimizer runs and nothing is kept.
bool step_fits(const ModelFacts& facts, const Placement& placement);

/// Throws InputError where it is proved that not one micro-batch, or not the end of a step, fits the memory.
void check_memory(const ModelFacts& facts, const Placement& placement, int micro_batches);

/// A stage on one device whose backward stays whole where backwards are split: some of its layers were not
/// measured in two halves (torch refuses to cut them, or they recompute by themselves).
struct WholeBackward {
  int stage = 0;            ///< index of `stages`; it is called "s" and the index in the placement
  std::vector<int> layers;  ///< without halves in the profile
};

/// Empty where nothing is to be split. O(layers).
std::vector<WholeBackward> whole_backwards(const Profile& profile, const PartitionOptions& options,
                                           const std::vector<Stage>& stages);

}  // namespace ostinato
