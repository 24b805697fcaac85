// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small placements for tests of the search, in nanoseconds and bytes.
//
//   Placement p = on_devices(2, capacity);
//   const int f0 = add(p, "F0", {0}, 1, {.memory = +1});
//   add(p, "F1", {1}, 1, {.after = {f0}});

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "search/placement/placement.h"

namespace ostinato::test {

struct BlockOptions {
  Bytes memory = 0;
  Bytes workspace = 0;
  std::vector<int> after = {};
  Bytes bytes = 0;  ///< carried by every input
};

inline Placement on_devices(int devices, Bytes capacity = kUnlimited) {
  Placement p;
  p.name = "small";
  p.devices.resize(devices);
  for (int d = 0; d < devices; ++d) {
    p.devices[d].name = fmt::format("d{}", d);
    p.devices[d].memory = capacity;
  }
  return p;
}

/// Adds a block and returns its index.
inline int add(Placement& p, std::string name, std::vector<int> devices, Nanoseconds time,
               const BlockOptions& o = {}) {
  Block block;
  block.name = std::move(name);
  block.devices = std::move(devices);
  block.time = time;
  block.memory = o.memory;
  block.workspace = o.workspace;
  for (const int input : o.after) block.after.push_back({input, o.bytes});
  p.blocks.push_back(block);
  return static_cast<int>(p.blocks.size()) - 1;
}

/// Two stages on one device with split backwards, of which the first recomputes: I0 takes 2, which only W0
/// gives back. Each block takes 1.
inline Placement split_and_recomputed() {
  Placement p = on_devices(1, 3);
  const int f0 = add(p, "F0", {0}, 1, {.memory = 1});
  const int f1 = add(p, "F1", {0}, 1, {.memory = 4, .after = {f0}});
  const int i1 = add(p, "I1", {0}, 1, {.after = {f1}});
  const int i0 = add(p, "I0", {0}, 1, {.memory = 2, .after = {i1}});
  add(p, "W0", {0}, 1, {.memory = -3, .after = {i0}});
  add(p, "W1", {0}, 1, {.memory = -4, .after = {i1}});
  return p;
}

}  // namespace ostinato::test
