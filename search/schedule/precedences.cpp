// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/precedences.h"

namespace ostinato {

Precedences::Precedences(int steps)
    : steps_(steps), longest_(static_cast<std::size_t>(steps) * steps, kNoPath) {
  for (int s = 0; s < steps; ++s) longest_[at(s, s)] = 0;
}

bool Precedences::add(int from, int to, Nanoseconds length) {
  if (longest(from, to) >= length) return true;
  const Nanoseconds back = longest(to, from);
  if (back != kNoPath && back + length > 0) return false;
  later_.clear();
  for (int then = 0; then < steps_; ++then) {
    const Nanoseconds rest = longest(to, then);
    if (rest != kNoPath && length + rest > longest(from, then)) later_.push_back(then);
  }
  work_ += steps_;
  for (int first = 0; first < steps_; ++first) {
    const Nanoseconds before = longest(first, from);
    if (before == kNoPath) continue;
    work_ += static_cast<std::int64_t>(later_.size());
    // A path to what is no later from `from` itself is no longer from before it either.
    for (const int then : later_) {
      const Nanoseconds path = before + length + longest(to, then);
      Nanoseconds& known = longest_[at(first, then)];
      if (path <= known) continue;
      trail_.emplace_back(at(first, then), known);
      known = path;
    }
  }
  work_ += steps_;
  return true;
}

void Precedences::take_back(std::size_t mark) {
  for (; trail_.size() > mark; trail_.pop_back()) longest_[trail_.back().first] = trail_.back().second;
}

}  // namespace ostinato
