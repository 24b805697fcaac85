// SPDX-License-Identifier: Apache-2.0
#include "search/simulate/step_graph.h"

#include <utility>

#include "search/files/error.h"

namespace ostinato {

StepGraph::StepGraph(const Placement& placement, int micro_batches, const Orders& orders)
    : blocks_(static_cast<int>(placement.blocks.size())), steps_(blocks_ * micro_batches) {
  add_edges(placement, orders);
  sort();
}

void StepGraph::add_edges(const Placement& placement, const Orders& orders) {
  std::vector<std::vector<std::pair<int, int>>> device_before(steps_);  // (step, device)
  for (std::size_t d = 0; d < orders.size(); ++d) {
    for (std::size_t i = 1; i < orders[d].size(); ++i) {
      device_before[index(orders[d][i])].emplace_back(index(orders[d][i - 1]), static_cast<int>(d));
    }
  }
  std::vector<std::vector<Nanoseconds>> transfers(blocks_);
  for (int b = 0; b < blocks_; ++b) {
    for (const Dependency& input : placement.blocks[b].after)
      transfers[b].push_back(placement.transfer(input, b));
  }
  for (int s = 0; s < steps_; ++s) {
    first_.push_back(edges_.size());
    for (const auto& [from, device] : device_before[s]) edges_.push_back({from, device, 0});
    const auto& after = placement.blocks[s % blocks_].after;
    for (std::size_t i = 0; i < after.size(); ++i) {
      edges_.push_back({index({after[i].block, s / blocks_}), -1, transfers[s % blocks_][i]});
    }
  }
  first_.push_back(edges_.size());
}

void StepGraph::sort() {
  std::vector<int> waiting(steps_, 0);
  std::vector<std::vector<int>> followers(steps_);
  for (int s = 0; s < steps_; ++s) {
    for (const Edge& edge : before(s)) {
      followers[edge.from].push_back(s);
      ++waiting[s];
    }
    if (waiting[s] == 0) order_.push_back(s);
  }
  for (std::size_t i = 0; i < order_.size(); ++i) {
    for (const int follower : followers[order_[i]]) {
      if (--waiting[follower] == 0) order_.push_back(follower);
    }
  }
  if (static_cast<int>(order_.size()) != steps_) {
    throw InputError("", 0, "the orders of this schedule contradict its dependencies");
  }
}

}  // namespace ostinato
