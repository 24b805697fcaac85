#pragma once
// The placements that have names: V, X, M, NN, K (Tessel, figure 2), looped and wave.
//
//   Placement p = shape("v", {.devices = 4, .forward = 1, .backward = 2});

#include <string>
#include <vector>

#include "search/placement.h"

namespace ostinato {

struct ShapeOptions {
  int devices = 4;
  int chunks = 2;                    ///< chunks per device, for "looped" and "wave"
  Nanoseconds forward = 1000;        ///< of one chunk
  Nanoseconds backward = 2000;       ///< whole, or the input half where split
  Nanoseconds weight = 0;            ///< > 0: the backward is split, and this is the weight half
  Nanoseconds shard_forward = 1000;  ///< of a block on all devices (M, NN)
  Nanoseconds shard_backward = 1000;
  Bytes memory = 1;             ///< taken by each forward, given back by the last of its backward
  Bytes capacity = kUnlimited;  ///< of each device
  bool training = true;         ///< false: forwards only
};

/// "v", "x", "m", "nn", "k", "looped", "wave".
const std::vector<std::string>& shape_names();

/// Throws InputError where the options do not fit the shape (an odd number of devices for X, say).
Placement shape(const std::string& name, const ShapeOptions& options);

}  // namespace ostinato
