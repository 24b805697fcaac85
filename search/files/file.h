#pragma once
// Whole files in and out. Nothing is lost: a file is written beside its place, flushed to the disk, and
// renamed.

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace ostinato {

/// The bytes of a file. Throws InputError where it cannot be read or is larger than `max_bytes`.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes);

/// Replaces the file as a whole: temporary file in the same folder, fsync, rename. Throws InputError on
/// failure.
void write_file(const std::filesystem::path& path, std::string_view bytes);

/// SHA-256 (FIPS 180-4) of the bytes, lower-case hexadecimal.
std::string sha256(std::string_view bytes);

/// The candidate nearest to `word` by edit distance where it is near enough to suggest ("did you mean"), else
/// "". The first of several. Words beyond 100 bytes get no suggestion: nobody mistypes those, and the
/// distance is quadratic.
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
