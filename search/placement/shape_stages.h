// SPDX-License-Identifier: Apache-2.0
#pragma once
// The stages of a model in a named shape, before each of them is unrolled into forward and backward blocks.
//
//   const NamedShape* m = find_named_shape("m");
//   for (const ShapeStage& stage : m->stages(4, 1)) ...      // embed on all four, then s0 .. s3

#include <string>
#include <vector>

#include "search/placement/stage.h"

namespace ostinato {

/// A stage, and what it reads; which layers it has is not said yet.
struct ShapeStage : Stage {
  std::vector<int> inputs;  ///< indices of earlier stages
  bool shard = false;       ///< a part of it lies on each of its devices, were it a single one
};

struct NamedShape {
  std::string name;
  std::string about;  ///< in a few words
  std::vector<ShapeStage> (*stages)(int devices, int chunks) = nullptr;
  bool halves = false;       ///< needs an even number of devices
  bool chunked = false;      ///< reads `chunks`
  bool shard_keeps = false;  ///< its shard keeps activations as any stage; else it is an embedding
};

/// In the order in which they are listed to a user.
const std::vector<NamedShape>& named_shapes();

/// nullptr where there is none of that name.
const NamedShape* find_named_shape(const std::string& name);

}  // namespace ostinato
