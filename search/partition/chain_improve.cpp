// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <tuple>

#include "search/partition/chain_problem.h"

namespace ostinato::chain {
namespace {

/// A shard inside a stage, or a stage that is not allowed, counts as this many bytes too many.
constexpr Bytes kForbidden = Bytes{1} << 60;

/// How good cuts are; smaller is better, compared from the front.
using Score = std::tuple<Bytes, Nanoseconds, __int128, Bytes>;

Score score_of(const Problem& problem, const Ends& ends) {
  Bytes over = may_be_cut(problem, ends) ? 0 : kForbidden, cut = 0;
  Nanoseconds busiest = 0;
  __int128 squares = 0;
  const std::vector<Load> loads = loads_of(problem, ends);
  for (std::size_t d = 0; d < loads.size(); ++d) {
    const Load& load = loads[d];
    const int device = static_cast<int>(d);
    if (!problem.fits(load, device)) over += problem.needed(load) - problem.memory(device);
    busiest = std::max(busiest, load.time);
    squares += static_cast<__int128>(load.time) * load.time;
  }
  for (std::size_t s = 0; s + 1 < ends.size(); ++s) cut += problem.costs.bytes_at(ends[s]);
  return {over, busiest, squares, cut};
}

/// Every stage keeps a layer.
bool valid(const Ends& ends) {
  int first = 0;
  for (const int end : ends) {
    if (end <= first) return false;
    first = end;
  }
  return true;
}

/// Cuts [from, to) moved by `step` layers: a layer goes from the stage on one side of the run to the one on
/// the other.
Ends moved(Ends ends, int from, int to, int step) {
  for (int s = from; s < to; ++s) ends[s] += step;
  return ends;
}

}  // namespace

Ends improve_cuts(const Problem& problem, Ends ends, long scores) {
  const int cuts = problem.stages() - 1;
  Score best = score_of(problem, ends);
  for (bool again = true; again;) {
    again = false;
    for (int from = 0; from < cuts; ++from) {
      for (int to = from + 1; to <= cuts; ++to) {
        for (const int step : {-1, 1, -2, 2}) {
          const Ends candidate = moved(ends, from, to, step);
          if (!valid(candidate)) continue;
          if (scores-- == 0 || problem.stopped()) return ends;
          const Score score = score_of(problem, candidate);
          if (!(score < best)) continue;
          best = score;
          ends = candidate;
          again = true;
        }
      }
    }
  }
  return ends;
}

}  // namespace ostinato::chain
