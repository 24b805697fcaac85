// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which device hands a block's input to which.
//
//   for (const Dependency& input : block.after)
//     for (const Route& route : routes_of(placement, input, b)) draw_arrow(route.from, route.to);

#include <vector>

#include "search/placement/placement.h"

namespace ostinato {

struct Route {
  int from = 0, to = 0;  ///< devices
  Nanoseconds time = 0;  ///< of the transfer
};

/// One for each device of `block` that does not hold the input: from the device of the input that is quickest
/// for it, of equal ones the nearest by index. The longest of their times is Placement::transfer().
std::vector<Route> routes_of(const Placement& placement, const Dependency& input, int block);

}  // namespace ostinato
