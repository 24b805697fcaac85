// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <tuple>

#include "search/partition/chain_problem.h"

namespace ostinato::chain {
namespace {

/// Is there a partition with every device at most at `limit`? Stage by stage, finds the positions where a
/// partition of the first stages can end.
bool feasible(const Problem& problem, Nanoseconds limit) {
  const int layers = problem.costs.layers();
  std::vector<char> ends(layers + 1, 0);
  ends[0] = 1;
  for (int s = 0; s < problem.stages(); ++s) {
    problem.check_stop();
    ends = reachable_ends(problem, problem.device_of[s], s, ends, limit);
  }
  return ends[layers] != 0;
}

/// Cost of a partial partition; smaller is better.
struct Cost {
  __int128 squares = -1;      ///< -1: no partition
  Nanoseconds transfers = 0;  ///< there and, in training, back
  Bytes cut = 0;              ///< bytes over the cuts
  int first = 0;              ///< where the last stage starts
};

bool better(const Cost& a, const Cost& b) {
  return b.squares < 0 || std::tie(a.transfers, a.squares, a.cut) < std::tie(b.transfers, b.squares, b.cut);
}

/// What passing from stage s - 1 to stage s at this position takes, and the gradient back where there is one.
Nanoseconds transfers_at(const Problem& problem, int s, int position) {
  if (s == 0) return 0;
  const int from = problem.device_of[s - 1], to = problem.device_of[s];
  const Bytes bytes = problem.costs.bytes_at(position);
  const LinkTable& links = problem.model.links;
  __int128 time = links.between(from, to).time(bytes);
  if (!problem.model.inference) time += links.between(to, from).time(bytes);
  constexpr Nanoseconds most = std::numeric_limits<Nanoseconds>::max() >> 20;  // stages add up
  return static_cast<Nanoseconds>(std::min<__int128>(time, most));
}

/// Best cost of ending stage s at `end`, over all starts.
Cost best_stage(const Problem& problem, const std::vector<Cost>& before, int s, int end, Nanoseconds limit) {
  Cost best;
  const int device = problem.device_of[s];
  for (int first = end - 1; first >= 0; --first) {
    if (problem.beyond(device, s, first, end, limit)) break;
    if (before[first].squares < 0) continue;
    const auto stage = problem.fitting(device, s, first, end, limit);
    if (!stage) continue;
    const Nanoseconds time = stage->load.time;
    const Cost cost{before[first].squares + static_cast<__int128>(time) * time,
                    before[first].transfers + transfers_at(problem, s, first),
                    before[first].cut + (first > 0 ? problem.costs.bytes_at(first) : 0), first};
    if (better(cost, best)) best = cost;
  }
  return best;
}

Ends balanced(const Problem& problem, Nanoseconds limit) {
  const int layers = problem.costs.layers(), stages = problem.stages();
  std::vector<std::vector<Cost>> table(stages + 1, std::vector<Cost>(layers + 1));
  table[0][0].squares = 0;
  for (int s = 0; s < stages; ++s) {
    problem.check_stop();
    for (int end = s + 1; end <= layers - (stages - 1 - s); ++end)
      table[s + 1][end] = best_stage(problem, table[s], s, end, limit);
  }
  Ends ends(stages);
  int end = layers;
  for (int s = stages; s > 0; --s) {
    ends[s - 1] = end;
    end = table[s][end].first;
  }
  return ends;
}

/// The busiest device takes an equal share at least, were each layer where it is quickest.
Nanoseconds least_load(const Problem& problem) {
  const Nanoseconds total = problem.costs.least_time(0, problem.costs.layers(), !problem.may_keep);
  return (total + problem.stages() - 1) / problem.stages() + problem.model.blocks() +
         problem.costs.shard_time();
}

Found solve_in_order(const Problem& problem) {
  Found found;
  found.device_of = problem.device_of;
  Nanoseconds low = least_load(problem), high = low;
  const Nanoseconds most = longest_load(problem);
  // Up from the least in growing steps: the best is mostly near it, and small limits cost least to try.
  for (Nanoseconds step = low / 64 + 1; !feasible(problem, high); step *= 2) {
    if (high >= most) {
      found.proved_empty = true;
      return found;
    }
    low = high + 1;
    high = std::min(most, high + step);
  }
  while (low < high) {
    const Nanoseconds middle = low + (high - low) / 2;
    if (feasible(problem, middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  found.ends = balanced(problem, high);
  for (int s = 0, first = 0; s < problem.stages(); first = found.ends[s++]) {
    found.recomputed.push_back(
        problem.fitting(problem.device_of[s], s, first, found.ends[s], high)->recomputed);
  }
  found.busiest = found.lower_bound = high;
  return found;
}

}  // namespace

Found solve_single(const Problem& problem) {
  const bool one_kind = problem.costs.kinds() == 1;
  if (one_kind && !problem.costs.any_named()) return solve_in_order(problem);
  const KindOrder order = best_kind_order(problem);
  if (!order.complete) {  // another order may be better, or fit where this one does not
    Found found = solve_in_order(problem);
    found.proved_empty = false;
    found.lower_bound = std::min(found.lower_bound, least_load(problem));
    return found;
  }
  if (!order.device_of) {
    Found none;
    none.proved_empty = true;
    return none;
  }
  Problem ordered = problem;
  ordered.device_of = *order.device_of;
  Found found = solve_in_order(ordered);
  if (!one_kind) return found;
  Found as_given = solve_in_order(problem);
  return !as_given.ends.empty() && as_given.busiest <= found.busiest ? as_given : found;
}

}  // namespace ostinato::chain
