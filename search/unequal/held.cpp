// SPDX-License-Identifier: Apache-2.0
#include "search/unequal/held.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

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

using Pairs = std::vector<Held>;

/// All pairs with a path, the longest first.
Pairs pairs_of(const Jobs& jobs, const std::vector<int>& takers, const std::vector<int>& givers) {
  Pairs pairs;
  for (const int a : takers) {
    const std::vector<Nanoseconds> far = distances(jobs, a);
    for (const int c : givers)
      if (far[jobs.block(c)] != kNoPath) pairs.push_back({a, c, 0, far[jobs.block(c)]});
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Held& x, const Held& y) { return x.distance > y.distance; });
  return pairs;
}

/// In this order; nullopt where bytes given back are left.
std::optional<Pairs> match_in_order(const Jobs& jobs, const std::vector<int>& givers, const Pairs& pairs) {
  std::map<int, Bytes> left;
  for (const Held& pair : pairs) left[pair.taker] = jobs.memory(pair.taker);
  for (const int c : givers) left[c] = -jobs.memory(c);
  Pairs matched;
  for (Held pair : pairs) {
    pair.bytes = std::min(left[pair.taker], left[pair.giver]);
    left[pair.taker] -= pair.bytes;
    left[pair.giver] -= pair.bytes;
    if (pair.bytes > 0) matched.push_back(pair);
  }
  if (std::ranges::any_of(givers, [&](int c) { return left[c] > 0; })) return std::nullopt;
  return matched;
}

/// As docs/bounds.md, M3, has it: where the longest first leave bytes, the takers with the fewest givers do.
void match_one(const Jobs& jobs, const std::vector<int>& takers, const std::vector<int>& givers,
               Matched& matched) {
  Pairs pairs = pairs_of(jobs, takers, givers);
  std::optional<Pairs> found = match_in_order(jobs, givers, pairs);
  if (!found) {
    std::map<int, int> choices;
    for (const Held& pair : pairs) ++choices[pair.taker];
    std::ranges::stable_sort(pairs, {}, [&](const Held& pair) { return choices.at(pair.taker); });
    found = match_in_order(jobs, givers, pairs);
  }
  if (found) {
    matched.held.insert(matched.held.end(), found->begin(), found->end());
  } else {
    matched.all_given_taken = false;
  }
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
