// SPDX-License-Identifier: Apache-2.0
#pragma once
// Exact chain partition: contiguous layers to stages, stages to devices, so that the busiest device is as
// little busy as possible while every device's memory holds what it must.
//
//   PartitionOptions options{.devices = 4, .chunks = 2, .layout = ChunkLayout::wave, .micro_batches = 8};
//   StageCuts cuts = cut_chain(profile, options);
//   Placement placement = place_stages(profile, options, cuts.stages);   // stages.h
//
// A stage is a non-empty run of layers; a device runs `chunks` stages and its part of the sharded layers, and
// is busy for the sum of their forward and backward times per micro-batch. What it must hold:
//
//   static memory (parameters + gradients + optimizer state of its stages and shards)
//   + for each of them: (kept bytes of its layers + its input) * micro-batches in flight
//   + the largest workspace of a stage: the peak of its layers' forwards and backwards, each beside what the
//     layers before it keep, above what the whole stage keeps; of a split backward, what waits for its second
//     half; of the first stage, the batch beside its copy; what stages of one device hand to each other
//   + messages (transit.h), between stages of different devices alone
//
// What a stage's outputs show and only later layers' backwards need is not kept: once sent, it goes. A stage
// that recomputes keeps its input only; its backward takes a forward more, and as workspace what the forward
// would have kept. One that recomputes in part is two stages on its device; the first recomputes.
//
// In flight is estimated as 1F1B has it over the chain of S stages, shards among them: stage s holds
// min(micro_batches, S - s, cap) micro-batches. `cap` is S where memory allows that without making the
// busiest device busier. Where it does not, the cap is the one with the smallest max(busiest, ceil(chain /
// cap)), where chain is the time of one micro-batch through all stages and back: with at most `cap`
// micro-batches in flight no schedule has a shorter period (Little's law).
//
// Of whole stages, one a device, over a chain without shards, the estimate with cap == 1 is what every
// schedule needs: "infeasible" is a proof. Elsewhere it may be too much (where a shard stands among the
// stages and what passes without a message depends on all cuts), so "infeasible" and `lower_bound` are of a
// least estimate: no messages, and of what is in flight only what surely is. With lanes nothing is called
// infeasible, and the bound is that without a limit. The estimate may be too little where layers read from
// several others, backwards are split or layers run on lanes: check_memory() of stages.h has the last word.
//
// Source: the exact algorithms for the chains-on-chains partitioning problem (Pinar, Aykanat, "Fast optimal
// load balancing algorithms for 1D partitioning", JPDC 2004), with memory, uneven devices and recomputation
// added.

#include <vector>

#include "search/partition/partition_options.h"

namespace ostinato {

/// The best cuts. One chunk per device: always exact, in O(devices * layers * log(time)) unless memory is
/// tight, whatever the order of uneven devices along the chain (while there are few enough kinds, see
/// chain_kinds.cpp), and each stage recomputes, in part where asked for, or not for itself. Several chunks:
/// local search from several starts, then branch and bound over the cuts up to a fixed number of nodes;
/// devices in the order of the cluster; where memory needs it all stages recompute, but for those for which
/// there is room to keep; `lower_bound` tells whether the cuts were proved the best. Among the best of one
/// chunk: the least transfer time, then the smallest sum of squared loads. The same input gives the same
/// cuts.
///
/// Throws InfeasibleError where no partition fits the memory, InputError as check_partition(), for more
/// stages than layers, and where none was found to fit and none shown not to; StoppedError.
StageCuts cut_chain(const Profile& profile, const PartitionOptions& options);

/// place_stages() of cut_chain().
Placement partition_chain(const Profile& profile, const PartitionOptions& options);

/// Device of every stage of the chain, in model order: devices in the order of the cluster.
std::vector<int> devices_of_stages(const PartitionOptions& options);

}  // namespace ostinato
