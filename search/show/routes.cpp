// SPDX-License-Identifier: Apache-2.0
#include "search/show/routes.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>

namespace ostinato {

std::vector<Route> routes_of(const Placement& placement, const Dependency& input, int block) {
  const std::vector<int>& holders = placement.blocks[input.block].devices;
  std::vector<Route> routes;
  for (const int to : placement.blocks[block].devices) {
    if (std::binary_search(holders.begin(), holders.end(), to)) continue;
    Route best{-1, to, 0};
    for (const int from : holders) {
      const Nanoseconds time = placement.link_between(from, to).time(input.bytes);
      if (best.from < 0 || std::tuple(time, std::abs(from - to), from) <
                               std::tuple(best.time, std::abs(best.from - to), best.from))
        best = {from, to, time};
    }
    routes.push_back(best);
  }
  return routes;
}

}  // namespace ostinato
