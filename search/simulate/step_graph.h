// SPDX-License-Identifier: Apache-2.0
#pragma once
// The disjunctive graph of a schedule with its device orders fixed: what every step waits for.
//
//   const StepGraph graph(placement, 8, orders_of(placement, schedule));
//   for (const int s : graph.order()) {
//     for (const StepGraph::Edge& e : graph.before(s))
//       start[s] = std::max(start[s], end[e.from] + e.transfer);
//   }

#include <cstddef>
#include <span>
#include <vector>

#include "search/placement/placement.h"
#include "search/plan/orders.h"

namespace ostinato {

/// A step is known by its index: micro_batch * blocks + block.
class StepGraph {
 public:
  struct Edge {
    int from = 0;
    int device = -1;           ///< >= 0: that device runs `from` just before; -1: the step takes its output
    Nanoseconds transfer = 0;  ///< of an output, from the end of `from`
  };

  /// Throws InputError where the orders contradict the dependencies. O(steps + dependencies).
  StepGraph(const Placement& placement, int micro_batches, const Orders& orders);

  int size() const { return static_cast<int>(order_.size()); }
  Step step(int index) const { return {index % blocks_, index / blocks_}; }
  int index(const Step& step) const { return step.micro_batch * blocks_ + step.block; }

  /// Every step after all that it waits for.
  const std::vector<int>& order() const { return order_; }
  std::span<const Edge> before(int step) const {
    return {edges_.data() + first_[step], edges_.data() + first_[step + 1]};
  }

 private:
  void add_edges(const Placement& placement, const Orders& orders);
  void sort();

  int blocks_;
  int steps_;
  std::vector<std::size_t> first_;  ///< edges of step s are edges_[first_[s]] .. edges_[first_[s + 1] - 1]
  std::vector<Edge> edges_;
  std::vector<int> order_;
};

}  // namespace ostinato
