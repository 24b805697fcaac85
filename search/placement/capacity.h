// SPDX-License-Identifier: Apache-2.0
#pragma once
// A placement with less memory.
//
//   const Placement smaller = within_capacity(placement, Bytes{1} << 30);

#include <algorithm>

#include "search/placement/placement.h"

namespace ostinato {

/// The placement with at most this much memory per device.
inline Placement within_capacity(Placement placement, Bytes capacity) {
  for (Device& device : placement.devices) {
    if (device.lane_of < 0) device.memory = std::min(device.memory, capacity);
  }
  return placement;
}

}  // namespace ostinato
