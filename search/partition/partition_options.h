// SPDX-License-Identifier: Apache-2.0
#pragma once
// What every partition of a profile is asked for, and what it gives: stages.

#include <functional>
#include <optional>
#include <stdexcept>
#include <vector>

#include "search/placement/placement.h"
#include "search/profile/cluster.h"

namespace ostinato {

/// Which device is asked to run chunk c of `devices * chunks`. looped: c mod devices. wave: there and back
/// again (V for 2 chunks). What a placement is found to be: ChainShape (named/chain.h).
enum class ChunkLayout { looped, wave };

/// Which stages keep only their input from the forward and run it again before the backward.
/// needed: stages that do not fit their device otherwise. partly: no more of their layers than it takes: the
/// stage becomes two on its device, and the first recomputes. Stages over a graph stay whole.
enum class Recompute { never, needed, partly, always };

/// In which stages layers that name a lane run on it (stages.h); else they compute. keeping: in those that do
/// not recompute, whose lanes take no memory from them.
enum class LanesOf { none, keeping, all };

struct PartitionOptions {
  int devices = 1;
  int chunks = 1;  ///< per device
  ChunkLayout layout = ChunkLayout::looped;
  /// Of all devices, in which several chunks pass through them; empty: 0, 1, ...
  std::vector<int> order = {};
  Bytes device_memory = kUnlimited;
  int micro_batches = 1;        ///< of a step; bounds what is in flight
  bool split_backward = false;  ///< needs backward_input and backward_weight in the profile
  bool inference = false;       ///< forwards alone: nothing is kept, split or recomputed (inference.h)
  bool transfers = true;        ///< count transfer costs
  LanesOf lanes = LanesOf::keeping;
  bool allow_incomplete = false;  ///< accept a profile that lost events
  std::vector<int> sharded = {};  ///< layers that are sharded over all devices (stage_cost.h); rising
  Recompute recompute = Recompute::never;
  long nodes = 3'000'000;               ///< of branch and bound, for several chunks: a fraction of a second
  std::optional<Cluster> cluster = {};  ///< where it is there, `devices` and `device_memory` do not count
  std::function<bool()> stop = {};      ///< true: the best cuts so far, else StoppedError
};

/// PartitionOptions::stop said so before any cuts were found.
class StoppedError : public std::runtime_error {
 public:
  StoppedError() : std::runtime_error("stopped before a partition was found") {}
};

/// Where a model is cut, and how good that is.
struct StageCuts {
  std::vector<Stage> stages;    ///< all of them, shards included, each after the stages that it reads from
  Nanoseconds busiest = 0;      ///< time of the busiest device per micro-batch
  Nanoseconds lower_bound = 0;  ///< no partition with this many in flight is below it
  int in_flight = 0;            ///< micro-batches, see chain.h
  bool spread = false;          ///< the bound is for stages that each have a layer of Rule::spread
  bool exact() const { return busiest == lower_bound; }
};

/// `options.cluster`, or devices that are all alike.
Cluster cluster_of(const PartitionOptions& options);

/// Layers name lanes, and may run on them.
bool has_lanes(const Profile& profile, const PartitionOptions& options);

/// Throws InputError for options out of range or that contradict each other, an incomplete profile that is
/// not allowed, a time that was not measured, a sharded layer that does not exist, and sums that int64 cannot
/// hold.
void check_partition(const Profile& profile, const PartitionOptions& options);

}  // namespace ostinato
