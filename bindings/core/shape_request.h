// SPDX-License-Identifier: Apache-2.0
#pragma once
// A placement of a named shape, asked for as people type it.
//
//   ShapeRequest request;
//   request.shape = "m";
//   request.forward = "1ms,2ms,1ms,1ms";
//   const Placement placement = shape_of(request);

#include <string>

#include "search/placement/placement.h"

namespace ostinato::core {

/// Times and amounts as typed: "1.5ms", "2GiB", or without a unit, in `time_unit` and `memory_unit`; in lists
/// "3,1,1,2" one value per device.
struct ShapeRequest {
  std::string shape;
  int devices = 4;
  int chunks = 2;
  int layers = 0;  ///< of the model; 0: not known
  std::string forward = "1", backward = "2", weight = "0", shard_forward = "1", shard_backward = "1";
  std::string memory = "1", shard_memory, offload = "0", workspace = "0", static_memory = "0",
              capacity = "unlimited";
  std::string latency = "0", bandwidth = "0", bytes = "0";
  std::string time_unit = "us", memory_unit = "MiB";
  bool inference = false;
};

/// Throws UsageError, with the option's name or for what shape() and check_placement() refuse.
Placement shape_of(const ShapeRequest& request);

}  // namespace ostinato::core
