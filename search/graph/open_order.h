// SPDX-License-Identifier: Apache-2.0
#pragma once
// An order that the paper leaves open.

#include <cstdint>
#include <numeric>
#include <vector>

#include "search/numbers/random.h"

namespace ostinato::graph {

/// 0 .. count - 1, shuffled by `seed`; seed 0: as they are.
inline std::vector<int> open_order(int count, std::uint64_t seed) {
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  if (seed != 0) Random(seed).shuffle(order);
  return order;
}

}  // namespace ostinato::graph
