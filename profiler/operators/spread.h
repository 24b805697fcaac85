// SPDX-License-Identifier: Apache-2.0
#pragma once
// Median and quartiles of repeated measurements.

#include <vector>

#include "search/profile/profile.h"

namespace ostinato {

/// Nearest-rank quantiles, so that each is one of the samples: of {1, 2, 3, 4} low 1, median 2, high 3. No
/// samples: all zero, with repeats == 0 ("not measured"). O(samples log samples).
Spread spread_of(std::vector<Nanoseconds> samples);

}  // namespace ostinato
