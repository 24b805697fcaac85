// SPDX-License-Identifier: Apache-2.0
#include "search/unequal/held.h"

#include <algorithm>
#include <limits>

namespace ostinato::unequal {
namespace {

constexpr Nanoseconds kNoPath = -1;

/// By block: the longest time from the start of step `from` to the end of that block of its micro-batch.
std::vector<Nanoseconds> distances(const Jobs& jobs, int from) {
  const int first = jobs.micro_batch(from) * jobs.blocks();
  std::vector<Nanoseconds> far(jobs.blocks(), kNoPath);
  far[jobs.block(from)] = jobs.time(from);
  for (const int b : jobs.topological()) {
    if (!jobs.reaches(jobs.block(from), b)) continue;
    for (const Jobs::Input& in : jobs.inputs(first + b)) {
      const Nanoseconds before = far[jobs.block(in.step)];
      if (before == kNoPath) continue;
      far[b] = std::max(far[b], before + in.transfer + jobs.time(first + b));
    }
  }
  return far;
}

void match_one(const Jobs& jobs, const std::vector<int>& takers, const std::vector<int>& givers,
               Matched& matched) {
  std::vector<Held> pairs;
  for (const int a : takers) {
    const std::vector<Nanoseconds> far = distances(jobs, a);
    for (const int c : givers)
      if (far[jobs.block(c)] != kNoPath) pairs.push_back({a, c, 0, far[jobs.block(c)]});
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Held& x, const Held& y) { return x.distance > y.distance; });
  std::vector<Bytes> taken, given;
  for (const int a : takers) taken.push_back(jobs.memory(a));
  for (const int c : givers) given.push_back(-jobs.memory(c));
  const auto at = [](const std::vector<int>& list, int s) {
    return static_cast<std::size_t>(std::find(list.begin(), list.end(), s) - list.begin());
  };
  for (Held& pair : pairs) {
    Bytes& left = taken[at(takers, pair.taker)];
    Bytes& open = given[at(givers, pair.giver)];
    pair.bytes = std::min(left, open);
    left -= pair.bytes;
    open -= pair.bytes;
    if (pair.bytes > 0) matched.held.push_back(pair);
  }
  if (std::any_of(given.begin(), given.end(), [](Bytes bytes) { return bytes > 0; }))
    matched.all_given_taken = false;
}

}  // namespace

Matched match(const Jobs& jobs, int d) {
  Matched matched;
  for (int i = 0; i < jobs.micro_batches(); ++i) {
    std::vector<int> takers, givers;
    for (const int b : jobs.blocks_on(d)) {
      const int s = i * jobs.blocks() + b;
      if (jobs.memory(s) > 0) takers.push_back(s);
      if (jobs.memory(s) < 0) givers.push_back(s);
    }
    match_one(jobs, takers, givers, matched);
  }
  return matched;
}

}  // namespace ostinato::unequal
