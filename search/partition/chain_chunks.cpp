#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "search/partition/chain_problem.h"

namespace ostinato::chain {
namespace {

Nanoseconds busiest_of(const Problem& problem, const Ends& ends) {
  Nanoseconds busiest = 0;
  for (const Load& load : loads_of(problem, ends)) busiest = std::max(busiest, load.time);
  return busiest;
}

/// No device is less busy than the mean, nor than the longest layer.
Nanoseconds simple_bound(const Problem& problem) {
  const int layers = problem.sums.layers();
  Nanoseconds bound = (problem.sums.time(0, layers) + problem.devices - 1) / problem.devices;
  for (int i = 0; i < layers; ++i) bound = std::max(bound, problem.sums.time(i, i + 1));
  return bound;
}

/// Stages as if each had a device of its own.
Ends start_balanced(const Problem& problem) {
  std::vector<int> own(problem.stages());
  std::iota(own.begin(), own.end(), 0);
  const Problem alone{problem.sums, problem.stages(), own, problem.in_flight};
  return solve_single(alone).ends;
}

/// Stages of equally many layers.
Ends start_even(const Problem& problem) {
  Ends ends;
  for (int s = 1; s <= problem.stages(); ++s) {
    ends.push_back(static_cast<int>(static_cast<long>(problem.sums.layers()) * s / problem.stages()));
  }
  return ends;
}

}  // namespace

Found solve_chunks(const Problem& problem, long nodes) {
  Found found;
  found.lower_bound = simple_bound(problem);
  for (Ends start : {start_balanced(problem), start_even(problem)}) {
    const Ends ends = improve_cuts(problem, std::move(start));
    if (!all_fit(problem, ends)) continue;
    if (found.ends.empty() || busiest_of(problem, ends) < busiest_of(problem, found.ends)) found.ends = ends;
  }
  constexpr Nanoseconds any = std::numeric_limits<Nanoseconds>::max();
  while (found.ends.empty() || busiest_of(problem, found.ends) > found.lower_bound) {
    const Nanoseconds limit = found.ends.empty() ? any : busiest_of(problem, found.ends) - 1;
    const Searched searched = search_cuts(problem, limit, nodes);
    if (!searched.ends.empty()) {
      found.ends = improve_cuts(problem, searched.ends);
      continue;
    }
    if (searched.complete) {
      found.proved_empty = found.ends.empty();
      if (!found.ends.empty()) found.lower_bound = busiest_of(problem, found.ends);
    }
    break;
  }
  if (!found.ends.empty()) found.busiest = busiest_of(problem, found.ends);
  return found;
}

}  // namespace ostinato::chain
