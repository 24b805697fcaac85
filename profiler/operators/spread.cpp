// SPDX-License-Identifier: Apache-2.0
#include "profiler/operators/spread.h"

#include <algorithm>

#include "search/numbers/nearest_rank.h"

namespace ostinato {

Spread spread_of(std::vector<Nanoseconds> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto at = [&](int percent) { return samples[nearest_rank(samples.size(), percent)]; };
  return {at(50), at(25), at(75), static_cast<int>(samples.size())};
}

}  // namespace ostinato
