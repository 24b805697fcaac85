// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one stage costs on its device, or on all devices where it is sharded. Private to search/partition.
//
// A sharded stage holds a D-th of every layer on each of D devices, which run it together: a D-th of the
// time, parameters, kept activations and workspace (rounded up), and a ring all-reduce after the forward (of
// its output) and after the backward (of its input's gradient). Its input and the buffer of the all-reduce
// stand whole on every device. A ring all-reduce of n bytes takes 2 (D - 1) steps of n / D bytes, each as
// long as on the slowest link of the ring (Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms", JPDC
// 2009).

#include <algorithm>
#include <vector>

#include "search/partition/partition_options.h"
#include "search/profile/layer_graph.h"

namespace ostinato::chain {

/// Sums over layers, and of whole stages what each block takes beside them; of workspaces the peak above what
/// the whole stage keeps.
struct StageCost {
  Nanoseconds forward = 0, backward = 0, backward_input = 0, backward_weight = 0;
  Nanoseconds again = 0;  ///< of its layers' forwards run once more
  Bytes kept = 0;   ///< from the forward to the end of the backward, without the input and what was sent
  Bytes sent = 0;   ///< of the outputs, above `kept`: until the gradient that comes back is there
  Bytes input = 0;  ///< which the backward needs as well; 0 for an inference, which has it in its workspace
  Bytes forward_workspace = 0, backward_workspace = 0;
  Bytes forward_peak = 0;      ///< workspace of a forward that keeps nothing: each layer's kept bytes count
  Bytes waiting = 0;           ///< between the halves of a split backward, above `kept`
  Bytes weight_workspace = 0;  ///< of the second half, above what waits
  Bytes step_together = 0, step_alone = 0;  ///< LayerCost
  Nanoseconds step_time = 0;                ///< LayerCost
  bool halves = true;                       ///< every layer's backward was measured in two halves
  Bytes fixed = 0;  ///< parameters, gradients, optimizer state; for an inference messages (inference.h)
  Bytes data = 0;   ///< a batch that its forward reads, beside its copy (transit.h)
  Bytes received = 0, handed_on = 0;  ///< bytes between it and other stages

  Bytes workspace() const { return std::max(forward_workspace, backward_workspace); }
  /// Its peak above in_flight(). `split`: its backward runs in halves, one right behind the other.
  Bytes peak(bool recompute, bool split) const {
    const Bytes first = recompute ? std::max<Bytes>(0, forward_peak - sent) : forward_workspace;
    const Bytes between = split && halves ? waiting + weight_workspace - sent : 0;
    return std::max(first + data, std::max(workspace(), between) + (recompute ? kept : 0));
  }
  /// Of each micro-batch in flight.
  Bytes in_flight(bool recompute) const { return input + sent + (recompute ? 0 : kept); }
};

/// A profile on a cluster: the layers as each kind of device runs them, without backwards for an inference.
/// Keeps a reference to the profile.
struct Model {
  Model(const Profile& profile, const PartitionOptions& options);

  const Profile& profile;
  const Cluster cluster;
  const LayerGraph graph;
  const std::vector<std::vector<LayerCost>> on_kind;  ///< by kind, then layer; where backwards are split, one
                                                      ///< without halves is all in its input half
  const LinkTable links;                              ///< empty where transfers do not count
  const bool split, inference;
  const RankCost rank;  ///< for an inference: no memory, no backward

  int devices() const { return static_cast<int>(cluster.devices.size()); }
  int kind_of(int device) const { return cluster.devices[device].kind; }
  Bytes memory_of(int device) const { return cluster.kinds[kind_of(device)].memory; }
  /// Of a stage for one micro-batch, beside its layers.
  Nanoseconds blocks() const { return rank.forward + (split ? 2 : 1) * rank.backward; }
  /// What the end of a step takes on a device above what it always holds. `together`, `alone`: LayerCost,
  /// over all its layers.
  Bytes end_of_step(Bytes together, Bytes alone) const {
    return std::max({rank.step, std::max(together, alone) - rank.held, Bytes{0}});
  }
};

/// What a block of this kind takes beside its layers; one on a lane takes nothing.
Nanoseconds block_overhead(const RankCost& rank, Kind kind);

/// What each of `parts` takes of a whole, rounded up.
template <typename Number>
Number share(Number whole, int parts) {
  return (whole + parts - 1) / parts;
}

/// Of `bytes` over a ring of these devices, at least two.
Nanoseconds all_reduce(const LinkTable& links, const std::vector<int>& devices, Bytes bytes);

/// The model with all layers computing, lanes or not.
Model all_computing(const Profile& profile, PartitionOptions options);

/// The cost of these layers alone on one device of this kind, without blocks. O(layers + edges).
StageCost cost_of_run(const Model& model, int kind, const Layers& layers);

/// Of a stage of these layers.
StageCost cost_on_kind(const Model& model, int kind, const Layers& layers);

/// The cost of a sharded stage on each of `devices`, at least two: the cost on their slowest kind.
StageCost cost_of_shard(const Model& model, const Layers& layers, const std::vector<int>& devices);

/// Either of the last two, and the layers' forwards once more in the backward where the stage recomputes.
StageCost cost_of_stage(const Model& model, const Stage& stage);

}  // namespace ostinato::chain
