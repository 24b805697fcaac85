// SPDX-License-Identifier: Apache-2.0
#pragma once
// "did you mean": nearest("thrads", keys) is "threads".

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace ostinato {

/// The candidate nearest to `word` by edit distance if it is near enough to suggest ("did you mean"), else
/// "". The first one if tied. Words over 100 bytes get no suggestion: they are no typos, and the distance is
/// quadratic.
template <typename Candidates>
std::string nearest(std::string_view word, const Candidates& candidates);

/// Edit distance (insert, delete, replace, swap of neighbours each cost 1).
std::size_t edit_distance(std::string_view a, std::string_view b);

template <typename Candidates>
std::string nearest(std::string_view word, const Candidates& candidates) {
  std::string best;
  std::size_t best_distance = std::min<std::size_t>(word.size(), word.size() < 4 ? 2 : 3);
  if (word.size() > 100) return best;
  for (const auto& candidate : candidates) {
    const std::size_t size = std::string_view(candidate).size();
    if (std::max(size, word.size()) - std::min(size, word.size()) >= best_distance) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace ostinato
