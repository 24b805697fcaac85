// SPDX-License-Identifier: Apache-2.0
#pragma once
// Quantiles that are values of the list itself.
//
//   sorted[nearest_rank(sorted.size(), 90)]      // of 10 values the 9th, of 5 the 5th

#include <cstddef>

namespace ostinato {

/// Of `count` ascending values (at least one) the place of the first that at least `percent` of them, 0 to
/// 100, do not exceed.
constexpr std::size_t nearest_rank(std::size_t count, int percent) {
  const std::size_t rank = (count * static_cast<std::size_t>(percent) + 99) / 100;
  return rank == 0 ? 0 : rank - 1;
}

}  // namespace ostinato
