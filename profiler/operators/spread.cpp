// SPDX-License-Identifier: Apache-2.0
#include "profiler/operators/spread.h"

#include <algorithm>

namespace ostinato {

Spread spread_of(std::vector<Nanoseconds> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto at = [&](std::size_t quarters) { return samples[(samples.size() * quarters + 3) / 4 - 1]; };
  return {at(2), at(1), at(3), static_cast<int>(samples.size())};
}

}  // namespace ostinato
