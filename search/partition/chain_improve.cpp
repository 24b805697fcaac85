#include <algorithm>
#include <tuple>

#include "search/partition/chain_problem.h"

namespace ostinato::chain {
namespace {

/// How good cuts are; smaller is better, compared from the front.
using Score = std::tuple<Bytes, Nanoseconds, __int128, Bytes>;

Score score_of(const Problem& problem, const Ends& ends) {
  Bytes over = 0, cut = 0;
  Nanoseconds busiest = 0;
  __int128 squares = 0;
  for (const Load& load : loads_of(problem, ends)) {
    if (!problem.fits(load)) over += problem.needed(load) - problem.memory;
    busiest = std::max(busiest, load.time);
    squares += static_cast<__int128>(load.time) * load.time;
  }
  for (std::size_t s = 0; s + 1 < ends.size(); ++s) cut += problem.sums.input(ends[s]);
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

Ends improve_cuts(const Problem& problem, Ends ends) {
  const int cuts = problem.stages() - 1;
  Score best = score_of(problem, ends);
  for (bool again = true; again;) {
    again = false;
    for (int from = 0; from < cuts; ++from) {
      for (int to = from + 1; to <= cuts; ++to) {
        for (const int step : {-1, 1, -2, 2}) {
          const Ends candidate = moved(ends, from, to, step);
          if (!valid(candidate)) continue;
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
