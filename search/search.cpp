// SPDX-License-Identifier: Apache-2.0
#include "search/search.h"

#include <chrono>

#include "search/leaner.h"
#include "search/shortest.h"

namespace ostinato {

Plan search(const Placement& placement, const SearchOptions& options) {
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  Plan plan = shortest_plan(placement, options);
  return in_less_memory(placement, left_after(options, Clock::now() - began), std::move(plan));
}

}  // namespace ostinato
