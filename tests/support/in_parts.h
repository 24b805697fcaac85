// SPDX-License-Identifier: Apache-2.0
#pragma once
// Placements with exchanges on lanes, made from ones without.

#include <string>
#include <vector>

#include "search/placement/lanes.h"
#include "search/placement/placement.h"

namespace ostinato {

/// Every stage of a chain, or of two, in four parts: it computes, exchanges on a lane, computes and
/// exchanges. Each exchange takes `exchange`, each computing part half of what the block took.
inline Placement in_parts(const Placement& whole, Nanoseconds exchange) {
  Placement parts;
  parts.name = whole.name + " in parts";
  parts.devices = whole.devices;
  std::vector<int> lane;
  for (int d = 0; d < static_cast<int>(whole.devices.size()); ++d)
    lane.push_back(add_lane(parts, d, "network"));
  for (const Block& block : whole.blocks) {
    const bool forward = block.kind == Kind::forward;
    const int first = static_cast<int>(parts.blocks.size());
    for (int k = 0; k < 4; ++k) {
      const int part = forward ? k : 3 - k;  // a backward begins with the exchange behind the stage
      Block made = block;
      made.name = block.name + std::to_string(part);
      made.stage = block.stage + "." + std::to_string(part);
      made.after.clear();
      if (part % 2 == 1) {
        made.devices = {lane[block.devices[0]]};
        made.memory = 0;
        made.time = exchange;
      } else {
        made.time = block.time / 2;
        if (part != 0) made.memory = 0;
      }
      if (k > 0) made.after.push_back({first + k - 1, 0});
      if (!forward) made.after.push_back({parts.find_block(block.stage + ".F" + std::to_string(part)), 0});
      parts.blocks.push_back(std::move(made));
    }
    for (const Dependency& input : block.after) {
      const Block& before = whole.blocks[input.block];
      if (before.stage != block.stage)
        parts.blocks[first].after.push_back({parts.find_block(before.name + (forward ? "3" : "0")), 0});
    }
  }
  link_lanes(parts);
  return parts;
}

}  // namespace ostinato
