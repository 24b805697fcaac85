// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/longest_paths.h"

namespace ostinato {

LongestPaths::LongestPaths(int items) : items_(items) {
  length_.assign(static_cast<std::size_t>(items) * items, kNoPath);
  for (int x = 0; x < items; ++x) length_[index(x, x)] = 0;
}

bool LongestPaths::add(int x, int y, Nanoseconds weight) {
  if (get(x, y) >= weight) return true;
  if (get(y, x) > -weight) return false;
  sources_.clear();
  targets_.clear();
  for (int i = 0; i < items_; ++i) {
    if (get(i, x) > kNoPath && get(i, x) + weight > get(i, y)) sources_.push_back(i);
    if (get(y, i) > kNoPath && get(y, i) + weight > get(x, i)) targets_.push_back(i);
  }
  work_ += 2 * items_ + static_cast<std::int64_t>(sources_.size() * targets_.size());
  for (const int i : sources_) {
    const Nanoseconds to_y = get(i, x) + weight;
    for (const int j : targets_) {
      const std::size_t at = index(i, j);
      const Nanoseconds through = to_y + get(y, j);
      if (through <= length_[at]) continue;
      changes_.push_back({at, length_[at]});
      length_[at] = through;
    }
  }
  return true;
}

void LongestPaths::undo(std::size_t mark) {
  while (changes_.size() > mark) {
    length_[changes_.back().at] = changes_.back().before;
    changes_.pop_back();
  }
}

}  // namespace ostinato
