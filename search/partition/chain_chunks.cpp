// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "search/partition/chain_problem.h"

namespace ostinato::chain {
namespace {

/// Stages that a local search looks at for each node that a branch and bound may visit: as much time.
constexpr long kScoredStages = 10;
constexpr long kFewestScores = 200;

Nanoseconds busiest_of(const Problem& problem, const Ends& ends) {
  Nanoseconds busiest = 0;
  for (const Load& load : loads_of(problem, ends)) busiest = std::max(busiest, load.time);
  return busiest;
}

/// The busiest device takes the mean at least, and the longest layer, were each layer where it is quickest.
Nanoseconds simple_bound(const Problem& problem) {
  const int layers = problem.costs.layers();
  const auto time = [&](int first, int end) {
    return problem.costs.least_time(first, end, !problem.may_keep);
  };
  Nanoseconds longest = 0;
  for (int i = 0; i < layers; ++i) longest = std::max(longest, time(i, i + 1));
  const Nanoseconds blocks = problem.model.blocks();
  const Nanoseconds all = time(0, layers) + problem.stages() * blocks;
  const Nanoseconds mean = (all + problem.devices() - 1) / problem.devices();
  return std::max(mean, longest + blocks) + problem.costs.shard_time();
}

/// Stages of about the same time each, cut where the sum of the times says.
Ends start_balanced(const Problem& problem) {
  const LayerSums& on = problem.sums(0);
  const int layers = problem.costs.layers(), stages = problem.stages();
  Ends ends;
  for (int s = 1, end = 0; s < stages; ++s) {
    const auto wanted = static_cast<__int128>(on.time(0, layers)) * s;
    ++end;
    while (end < layers - (stages - s) && static_cast<__int128>(on.time(0, end)) * stages < wanted) ++end;
    ends.push_back(end);
  }
  ends.push_back(layers);
  return ends;
}

/// Stages of equally many layers.
Ends start_even(const Problem& problem) {
  Ends ends;
  for (int s = 1; s <= problem.stages(); ++s)
    ends.push_back(static_cast<int>(static_cast<long>(problem.costs.layers()) * s / problem.stages()));
  return ends;
}

/// Whether the cuts are a partition: nothing over the memory, no cut that may not be.
bool holds(const Problem& problem, const Ends& ends) {
  return may_be_cut(problem, ends) && all_fit(problem, ends);
}

}  // namespace

Found solve_chunks(const Problem& problem, long nodes) {
  const long scores = std::max(kFewestScores, kScoredStages * nodes / problem.stages());
  Found found;
  found.device_of = problem.device_of;
  found.lower_bound = simple_bound(problem);
  for (Ends start : {start_balanced(problem), start_even(problem)}) {
    const Ends ends = improve_cuts(problem, std::move(start), scores);
    if (!holds(problem, ends)) continue;
    if (found.ends.empty() || busiest_of(problem, ends) < busiest_of(problem, found.ends)) found.ends = ends;
  }
  constexpr Nanoseconds any = std::numeric_limits<Nanoseconds>::max();
  while (!problem.stopped() && (found.ends.empty() || busiest_of(problem, found.ends) > found.lower_bound)) {
    const Nanoseconds limit = found.ends.empty() ? any : busiest_of(problem, found.ends) - 1;
    const Searched searched = search_cuts(problem, limit, nodes);
    if (!searched.ends.empty()) {
      found.ends = improve_cuts(problem, searched.ends, scores);
      continue;
    }
    if (searched.complete) {
      found.proved_empty = found.ends.empty();
      if (!found.ends.empty()) found.lower_bound = busiest_of(problem, found.ends);
    }
    break;
  }
  if (found.ends.empty()) return found;
  found.busiest = busiest_of(problem, found.ends);
  for (int s = 0, first = 0; s < problem.stages(); first = found.ends[s++])
    found.recomputed.push_back(problem.may_keep ? 0 : found.ends[s] - first);
  return found;
}

void keep_what_fits(const Problem& problem, Found& found) {
  std::vector<Nanoseconds> again;
  for (int s = 0, first = 0; s < problem.stages(); first = found.ends[s++])
    again.push_back(problem.sums(problem.device_of[s]).again(first, found.ends[s]));
  std::vector<int> order(again.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return again[a] > again[b]; });
  const auto fits_with = [&](int s, int recomputed) {
    const int before = std::exchange(found.recomputed[s], recomputed), device = problem.device_of[s];
    if (problem.fits(loads_of(problem, found.ends, found.recomputed)[device], device)) return true;
    found.recomputed[s] = before;
    return false;
  };
  std::erase_if(order, [&](int s) { return fits_with(s, 0); });
  for (const int s : order) {
    if (problem.stopped()) break;
    const int first = s == 0 ? 0 : found.ends[s - 1];
    for (int recomputed = 1; problem.in_part && recomputed < found.recomputed[s]; ++recomputed)
      if (problem.costs.may_end(first + recomputed) && fits_with(s, recomputed)) break;
  }
  found.busiest = 0;
  for (const Load& load : loads_of(problem, found.ends, found.recomputed))
    found.busiest = std::max(found.busiest, load.time);
  found.lower_bound = std::min(found.busiest, simple_bound(problem));
}

}  // namespace ostinato::chain
