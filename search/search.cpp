// SPDX-License-Identifier: Apache-2.0
#include "search/search.h"

#include <chrono>

#include "search/leaner.h"
#include "search/robust.h"
#include "search/shortest.h"

namespace ostinato {

Plan search(const Placement& placement, const SearchOptions& options) {
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  Plan plan = shortest_plan(placement, options);
  const auto rest = [&] { return left_after(options, Clock::now() - began); };
  Plan lean = in_less_memory(placement, rest(), plan);
  if (options.robust_ppm == 0) return lean;
  return in_variation(placement, rest(), {std::move(plan), std::move(lean)});
}

}  // namespace ostinato
