// SPDX-License-Identifier: Apache-2.0
#pragma once
// The named shapes as people draw them, for `ostinato placement --help`: drawn from the placement itself.
//
//   shape_sketch("m")    // embed.F and embed.B on all devices around a V:
//
//   device 0   F F             B B
//   device 1   F   F         B   B
//   device 2   F     F     B     B
//   device 3   F       F B       B

#include <string>

namespace ostinato::cli {

/// One line a device, one column per block time from left to right (forward F, backward B) on 4 devices, as
/// early as the dependencies of one micro-batch allow.
std::string shape_sketch(const std::string& shape);

/// Name, meaning and sketch of every shape.
std::string all_shape_sketches();

}  // namespace ostinato::cli
