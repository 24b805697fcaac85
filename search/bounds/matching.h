// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which bytes of a device one micro-batch surely holds, and for how long (docs/bounds.md, M3).
//
//   if (const auto held = match(instance, d)) ...   // for each: from the start of taker to the end of giver
//
// Where some bytes given back find no block that took them, a micro-batch may hold less than nothing, and
// nothing is known about the memory of the device.

#include <map>
#include <optional>
#include <vector>

#include "search/placement/instance.h"

namespace ostinato {

/// Bytes that one block takes and another one, or the same, gives back.
struct Held {
  int taker;
  int giver;  ///< -1: never given back
  Bytes bytes;
  Nanoseconds
      distance;  ///< longest path from the start of the one to the end of the other; 0 where giver is -1
};

/// The matching of M3 for these pairs with a path (`bytes` unset), where blocks take or give back (below 0)
/// this much memory; then what is never given back. Absent if bytes given back stay unmatched.
std::optional<std::vector<Held>> match_pairs(const std::vector<Held>& pairs,
                                             const std::map<int, Bytes>& memory);

/// The matching of M3 on device d; absent where it leaves bytes given back unmatched. O(takers * (blocks +
/// edges + givers)).
std::optional<std::vector<Held>> match(const Instance& instance, int d);

/// Of every device; absent also where it is not limited, and on all devices where matching would cost too
/// much (docs/bounds.md, "Large placements").
using Matchings = std::vector<std::optional<std::vector<Held>>>;
Matchings match_all(const Instance& instance);

/// The same with time running backwards; absent where something is never given back.
Matchings mirrored(const Matchings& held);

/// Memory-time that one micro-batch needs on a device (M3), in byte-nanoseconds.
struct Area {
  __int128 bytes_time = 0;
  Nanoseconds head = 0;  ///< before any of it is held
  Nanoseconds tail = 0;  ///< after all of it is given back
};
Area area_of(const Instance& instance, int d, const std::vector<Held>& held);

/// What n micro-batches take at least where this many bytes are available: ceil(n * bytes_time / room). 2^61
/// where it is more: no step that is planned is as long (check_totals), so memory holds no order.
Nanoseconds window_of(const Area& area, int n, Bytes room);

/// The longest time from the start of block `from` to the end of every block (-1: no path). O(edges).
std::vector<Nanoseconds> distances_from(const Instance& instance, int from);

}  // namespace ostinato
