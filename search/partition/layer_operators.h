// SPDX-License-Identifier: Apache-2.0
#pragma once
// A profile as an operator graph: what the strategies of strategies.h and best.h take.
//
//   const LayerOperators operators(chain::Model(profile, options));
//   const GraphCosts costs(operators.graph(), operators.devices());
//   const GraphBest best = best_partition(costs);
//   Nanoseconds latency = operators.nanoseconds(best.solution.makespan);
//
// Vertex l is the forward of layer l, vertex layers + l its backward (both halves of it, where it is split):
// they share a device, and hold the layer's parameters, gradients, optimizer state, and what one micro-batch
// keeps. One iteration is one micro-batch, there and back. An inference has the forwards alone.
//
// An operator graph knows less than a profile, so some of it is an estimate: a kind of device is as fast as
// the ratio of the sums of its layers says; a vertex has one tensor, as large as its largest edge; memory is
// what one micro-batch in flight needs, or somewhat more; a link's latency is in its rate, exact for the mean
// size of a transfer. Its numbers are whole and at most kMaxGraphNumber: times and bytes are counted in units
// that make them so, rounded up.

#include "search/graph/graph.h"
#include "search/partition/stage_cost.h"

namespace ostinato {

class LayerOperators {
 public:
  /// Keeps nothing of `model`. O(layers + edges + devices^2). Throws InputError where the profile's sums
  /// leave what a graph can hold.
  explicit LayerOperators(const chain::Model& model);

  const ostinato::graph::OperatorGraph& graph() const { return graph_; }
  const ostinato::graph::GraphDevices& devices() const { return devices_; }
  /// Rounded up.
  Nanoseconds nanoseconds(ostinato::graph::Ticks ticks) const;

 private:
  ostinato::graph::OperatorGraph graph_;
  ostinato::graph::GraphDevices devices_;
  std::int64_t time_unit_ = 1;  ///< nanoseconds of an operation on the first kind, times kFirstSpeed: a unit
};

}  // namespace ostinato
