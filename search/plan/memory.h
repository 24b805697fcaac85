// SPDX-License-Identifier: Apache-2.0
#pragma once
// What devices hold at most, against each other and against what they have.
//
//   if (fits_memory(placement, peak_memory(placement, schedule))) ...;

#include <algorithm>
#include <vector>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato {

/// Of the fullest device.
inline Bytes most_memory(const std::vector<Bytes>& peaks) {
  return *std::max_element(peaks.begin(), peaks.end());
}
inline Bytes most_memory(const Plan& plan) { return most_memory(plan.peak_memory); }

/// `peaks`: by device.
inline bool fits_memory(const Placement& placement, const std::vector<Bytes>& peaks) {
  for (std::size_t d = 0; d < peaks.size(); ++d)
    if (peaks[d] > placement.devices[d].memory) return false;
  return true;
}

}  // namespace ostinato
