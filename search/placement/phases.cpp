// SPDX-License-Identifier: Apache-2.0
#include "search/placement/phases.h"

namespace ostinato {

std::vector<bool> second_half(const Placement& placement) {
  std::vector<bool> second(placement.blocks.size(), false);
  for (const int b : topological_order(placement)) {
    const Kind kind = placement.blocks[b].kind;
    second[b] = kind == Kind::backward || kind == Kind::backward_input || kind == Kind::backward_weight;
    for (const Dependency& input : placement.blocks[b].after) second[b] = second[b] || second[input.block];
  }
  return second;
}

}  // namespace ostinato
