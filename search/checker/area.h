// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory times time: what one micro-batch needs of a device (docs/bounds.md, M3), for the bounds P2, M3 and
// S3.

#include "search/checker/graph.h"

namespace ostinato::checker {

/// Bytes that one micro-batch holds on a device from the start of `taker` to the end of `giver`.
struct Held {
  int taker;
  int giver;  ///< -1: they are never given back
  Bytes bytes;
  Wide distance;  ///< least time from the start of the one to the end of the other; 0 where giver is -1
};

/// The matching of M3 on one device.
struct Matching {
  std::vector<Held> held;
  bool complete = true;  ///< every byte given back was taken by a block that a path leads from
};

/// O(blocks on the device * (blocks + edges)).
Matching match(const Graph& graph, int device);

/// False for a placement so large that matching is left out: where takers * (blocks + edges + 32 * givers),
/// summed over the devices with limited memory, is more than kMostMatching. O(blocks).
bool can_be_matched(const Graph& graph);
inline constexpr Wide kMostMatching = 1 << 28;

struct Area {
  Wide bytes_time = 0;  ///< byte-nanoseconds that one micro-batch surely holds
  Wide room = 0;        ///< bytes that all micro-batches have together
  Wide before = 0;      ///< nanoseconds before any of it is held
  Wide after = 0;       ///< nanoseconds after all of it is given back
};

/// Area::bytes_time is 0 where the statement says nothing about the device: unlimited or no memory, bytes
/// given back that nothing took. O(blocks on the device * (blocks + edges)).
Area area_of(const Graph& graph, int device);

/// Nanoseconds that n micro-batches need at least: ceil(n * bytes_time / room). At most kUnbounded.
Wide time_of(const Area& area, Wide n);

/// More than any figure of a plan; sums of a few stay in 128 bits.
inline constexpr Wide kUnbounded = static_cast<Wide>(1) << 120;

}  // namespace ostinato::checker
