// SPDX-License-Identifier: Apache-2.0
#include "search/unequal/held.h"

#include <algorithm>
#include <iterator>
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

void match_one(const Jobs& jobs, const std::vector<int>& takers, const std::vector<int>& givers,
               Matched& matched) {
  std::map<int, Bytes> memory;
  std::vector<Held> pairs;
  for (const int c : givers) memory[c] = jobs.memory(c);
  for (const int a : takers) {
    memory[a] = jobs.memory(a);
    const std::vector<Nanoseconds> far = distances(jobs, a);
    for (const int c : givers)
      if (far[jobs.block(c)] != kNoPath) pairs.push_back({a, c, 0, far[jobs.block(c)]});
  }
  const std::optional<std::vector<Held>> found = match_pairs(pairs, memory);
  matched.all_given_taken = matched.all_given_taken && found;
  if (!found) return;
  std::ranges::copy_if(*found, std::back_inserter(matched.held), [](const Held& h) { return h.giver >= 0; });
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
