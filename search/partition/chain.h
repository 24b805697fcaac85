#pragma once
// Exact chain partition: contiguous layers to stages, stages to devices, so that the busiest device is as little busy
// as possible while every device's memory holds what it must.
//
//   PartitionOptions options{.devices = 4, .chunks = 2, .layout = ChunkLayout::wave, .micro_batches = 8};
//   Placement placement = partition_chain(profile, options);
//
// Stage times are the profile's forward + backward; a stage's memory is parameters + gradients + optimizer state, plus
// what it keeps for each micro-batch in flight, plus the largest workspace.

#include "search/partition/profile.h"
#include "search/placement.h"

namespace ostinato {

/// Which device runs chunk c of `devices * chunks`. looped: c mod devices. wave: there and back again (V for 2 chunks).
enum class ChunkLayout { looped, wave };

struct PartitionOptions {
  int devices = 1;
  int chunks = 1;  ///< per device
  ChunkLayout layout = ChunkLayout::looped;
  Bytes device_memory = kUnlimited;
  int micro_batches = 1;         ///< of a step; bounds what is in flight
  bool split_backward = false;   ///< needs backward_input and backward_weight in the profile
  bool transfers = true;         ///< count the profile's transfer costs
  bool allow_incomplete = false; ///< accept a profile that lost events
};

/// A placement with [[stages]], one block per stage and direction. O(devices * chunks * layers^2) at most.
/// Throws InfeasibleError where no partition fits the memory, InputError for an incomplete profile or more chunks than
/// layers.
Placement partition_chain(const Profile& profile, const PartitionOptions& options);

}  // namespace ostinato
