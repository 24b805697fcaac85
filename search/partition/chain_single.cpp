#include <algorithm>
#include <limits>
#include <tuple>

#include "search/partition/chain_problem.h"

namespace ostinato::chain {
namespace {

constexpr Nanoseconds kAnyTime = std::numeric_limits<Nanoseconds>::max();

/// Whether layers [first, end) can be stage s at all.
bool stage_fits(const Problem& problem, int stage, int first, int end) {
  return problem.memory == kUnlimited || problem.fits(problem.add({}, stage, first, end));
}

/// No stage that starts at `first` or before and ends at `end` fits: what is left out here is what does not
/// grow with the run of layers (its input).
bool beyond_memory(const Problem& problem, int stage, int first, int end) {
  if (problem.memory == kUnlimited) return false;
  const LayerSums& sums = problem.sums;
  return sums.fixed(first, end) + sums.kept(first, end) * problem.in_flight[stage] > problem.memory;
}

/// Is there a partition whose every stage takes at most `limit`? Stage by stage, the positions that a
/// partition of the first stages can end at.
bool feasible(const Problem& problem, Nanoseconds limit) {
  const int layers = problem.sums.layers();
  std::vector<char> ends(layers + 1, 0);
  ends[0] = 1;
  int lowest = 0, highest = 0;  // among `ends`
  for (int s = 0; s < problem.stages(); ++s) {
    const int last = layers - (problem.stages() - 1 - s);
    std::vector<char> next(layers + 1, 0);
    int next_lowest = layers + 1, next_highest = -1;
    for (int end = lowest + 1; end <= last; ++end) {
      for (int first = std::min(end - 1, highest); first >= lowest; --first) {
        if (problem.sums.time(first, end) > limit || beyond_memory(problem, s, first, end)) break;
        if (!ends[first] || !stage_fits(problem, s, first, end)) continue;
        next[end] = 1;
        next_lowest = std::min(next_lowest, end);
        next_highest = end;
        break;
      }
    }
    if (next_highest < 0) return false;
    ends.swap(next);
    lowest = next_lowest;
    highest = next_highest;
  }
  return ends[layers] != 0;
}

/// Cost of a partial partition; smaller is better.
struct Cost {
  __int128 squares = -1;  ///< -1: no partition
  Bytes cut = 0;          ///< bytes over the cuts
  int first = 0;          ///< where the last stage starts
};

bool better(const Cost& a, const Cost& b) {
  return b.squares < 0 || std::tie(a.squares, a.cut) < std::tie(b.squares, b.cut);
}

/// Best cost of ending stage s at `end`, over all starts.
Cost best_stage(const Problem& problem, const std::vector<Cost>& before, int s, int end, Nanoseconds limit) {
  Cost best;
  for (int first = end - 1; first >= 0; --first) {
    const Nanoseconds time = problem.sums.time(first, end);
    if (time > limit || beyond_memory(problem, s, first, end)) break;
    if (before[first].squares < 0 || !stage_fits(problem, s, first, end)) continue;
    const Cost cost{before[first].squares + static_cast<__int128>(time) * time,
                    before[first].cut + (first > 0 ? problem.sums.input(first) : 0), first};
    if (better(cost, best)) best = cost;
  }
  return best;
}

Ends balanced(const Problem& problem, Nanoseconds limit) {
  const int layers = problem.sums.layers(), stages = problem.stages();
  std::vector<std::vector<Cost>> table(stages + 1, std::vector<Cost>(layers + 1));
  table[0][0].squares = 0;
  for (int s = 0; s < stages; ++s) {
    for (int end = s + 1; end <= layers - (stages - 1 - s); ++end) {
      table[s + 1][end] = best_stage(problem, table[s], s, end, limit);
    }
  }
  Ends ends(stages);
  int end = layers;
  for (int s = stages; s > 0; --s) {
    ends[s - 1] = end;
    end = table[s][end].first;
  }
  return ends;
}

}  // namespace

Found solve_single(const Problem& problem) {
  Found found;
  if (!feasible(problem, kAnyTime)) {
    found.proved_empty = true;
    return found;
  }
  const int layers = problem.sums.layers();
  const Nanoseconds total = problem.sums.time(0, layers);
  Nanoseconds low = (total + problem.stages() - 1) / problem.stages(), high = total;
  while (low < high) {
    const Nanoseconds middle = low + (high - low) / 2;
    if (feasible(problem, middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  found.ends = balanced(problem, high);
  found.busiest = found.lower_bound = high;
  return found;
}

}  // namespace ostinato::chain
