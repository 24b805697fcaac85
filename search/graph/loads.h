// SPDX-License-Identifier: Apache-2.0
#pragma once
// What each device has been given so far, while a strategy assigns one group after the other.

#include <fmt/format.h>

#include <string>
#include <vector>

#include "search/graph/graph.h"

namespace ostinato::graph {

class GraphLoads {
 public:
  explicit GraphLoads(const GraphCosts& costs)
      : costs_(costs),
        used_(costs.device_count(), 0),
        operations_(costs.device_count(), 0),
        assignment_(costs.graph().size(), -1) {}

  const GraphCosts& costs() const { return costs_; }
  bool assigned(int vertex) const { return assignment_[vertex] >= 0; }
  int device(int vertex) const { return assignment_[vertex]; }
  std::int64_t used_memory(int device) const { return used_[device]; }

  bool fits(int group, int device) const {
    return costs_.allowed(group, device) &&
           used_[device] + costs_.graph().group_memory[group] <= costs_.devices().devices[device].memory;
  }

  /// Assigned operations, and `more`, over the speed of the device.
  Ticks load(int device, std::int64_t more = 0) const {
    const std::int64_t speed = costs_.devices().devices[device].speed, sum = operations_[device] + more;
    return sum / speed * kTicksPerUnit + sum % speed * kTicksPerUnit / speed;
  }

  /// Device -1: none was found; the reason is kept. False from then on.
  bool assign(int group, int device) {
    const OperatorGraph& graph = costs_.graph();
    if (device < 0) {
      const int v = graph.groups[group].front();
      reason_ = fmt::format("no device has the memory that is left for vertex {} and its group: {}",
                            graph.ids[v], graph.group_memory[group]);
      return false;
    }
    for (const int v : graph.groups[group]) assignment_[v] = device;
    used_[device] += graph.group_memory[group];
    operations_[device] += graph.group_operations[group];
    return true;
  }

  Assignment take() { return reason_.empty() ? std::move(assignment_) : Assignment{}; }
  const std::string& reason() const { return reason_; }

 private:
  const GraphCosts& costs_;
  std::vector<std::int64_t> used_, operations_;
  Assignment assignment_;
  std::string reason_;
};

}  // namespace ostinato::graph
