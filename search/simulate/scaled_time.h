// SPDX-License-Identifier: Apache-2.0
#pragma once
// Times times a factor that is written in millionths.
//
//   scaled_time(1'000, 1'500'000) == 1'500

#include <cstdint>

#include "search/placement/placement.h"

namespace ostinato {

inline constexpr std::int64_t kMillion = 1'000'000;

/// time * millionths / 10^6, to the nearest nanosecond; the product of two int64 always fits.
__extension__ inline __int128 scaled_wide(Nanoseconds time, std::int64_t millionths) {
  return (static_cast<__int128>(time) * millionths + kMillion / 2) / kMillion;
}

/// As scaled_wide(), where the caller knows that it fits.
inline Nanoseconds scaled_time(Nanoseconds time, std::int64_t millionths) {
  return static_cast<Nanoseconds>(scaled_wide(time, millionths));
}

}  // namespace ostinato
