// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "search/named/schedules.h"
#include "search/placement/phases.h"

namespace ostinato {
namespace {

/// The input half that this weight half may follow at once: its only input beside forwards. -1: none.
int input_half(const Placement& placement, int weight, const std::vector<bool>& second) {
  if (placement.blocks[weight].kind != Kind::backward_weight) return -1;
  int half = -1;
  for (const Dependency& input : placement.blocks[weight].after) {
    if (!second[input.block]) continue;
    if (half >= 0) return -1;
    half = input.block;
  }
  if (half < 0) return -1;
  return placement.blocks[half].devices == placement.blocks[weight].devices ? half : -1;
}

/// Blocks that run together, micro-batch by micro-batch: a block and the weight half that follows it at once.
std::vector<std::vector<int>> groups(const Placement& placement) {
  std::vector<int> order = topological_order(placement);
  const std::vector<bool> second = second_half(placement);
  std::stable_partition(order.begin(), order.end(), [&](int b) { return !second[b]; });
  std::vector<std::vector<int>> result;
  std::vector<int> group_of(placement.blocks.size(), -1);
  for (const int b : order) {
    const int half = input_half(placement, b, second);
    if (half >= 0) {
      group_of[b] = group_of[half];
      result[group_of[b]].push_back(b);
    } else {
      group_of[b] = static_cast<int>(result.size());
      result.push_back({b});
    }
  }
  return result;
}

}  // namespace

Orders gpipe_orders(const Placement& placement, int micro_batches) {
  Orders orders(placement.devices.size());
  for (const std::vector<int>& group : groups(placement)) {
    for (int i = 0; i < micro_batches; ++i) {
      for (const int b : group) {
        for (const int d : placement.blocks[b].devices) orders[d].push_back({b, i});
      }
    }
  }
  return orders;
}

Orders looped_bfs_orders(const Chain&, const Placement& placement, int micro_batches) {
  return gpipe_orders(placement, micro_batches);
}

}  // namespace ostinato
