// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tiny pipelines whose micro-batches differ: chains and loops, whole and split backwards, links, memory.
//
//   test::Dice random(7);
//   const test::UnequalCase one = test::unequal_case(random, 12);      // at most 12 steps

#include <vector>

#include "search/plan/sizes.h"
#include "tests/search/all_orders.h"

namespace ostinato::test {

struct UnequalCase {
  Placement placement;
  std::vector<MicroBatch> sizes;
};

/// Forwards of `stages` stages, then backwards, `split` into their halves; stage s on device s modulo
/// `devices`.
inline Placement pipeline_of(int stages, int devices, bool split, Bytes memory) {
  Placement p = on_devices(devices);
  int last = -1;
  for (int s = 0; s < stages; ++s)
    last =
        add(p, fmt::format("F{}", s), {s % devices}, 2,
            {.memory = memory, .after = last < 0 ? std::vector<int>{} : std::vector<int>{last}, .bytes = 1});
  for (int s = stages - 1; s >= 0; --s) {
    std::vector<int> after = {last};
    if (s < stages - 1) after.push_back(s);
    last = add(p, fmt::format("I{}", s), {s % devices}, 3,
               {.memory = split ? 0 : -memory, .after = after, .bytes = 1});
    if (split) add(p, fmt::format("W{}", s), {s % devices}, 2, {.memory = -memory, .after = {last}});
  }
  return p;
}

inline UnequalCase unequal_case(Dice& random, int most_steps) {
  UnequalCase one;
  for (;;) {
    const int devices = 1 + random.below(3), chunks = random.chance(25) ? 2 : 1;
    const bool split = random.chance(30);
    one.placement = random.chance(20) ? any_small(random, 2 + random.below(3))
                                      : pipeline_of(devices * chunks, devices, split, 2);
    if (static_cast<int>(one.placement.blocks.size()) * 2 <= most_steps) break;
  }
  Placement& p = one.placement;
  const int most = most_steps / static_cast<int>(p.blocks.size());
  const int n = 2 + random.below(most - 1);
  if (random.chance(40)) p.link = {.latency = random.below(3), .bytes_per_second = 1'000'000'000};
  for (int i = 0; i < n; ++i) {
    MicroBatch batch = as_written(p);
    const int scale = 1 + random.below(4);
    for (Nanoseconds& time : batch.times)
      time = random.chance(10) ? random.below(3) : time * scale - random.below(2);
    for (std::size_t b = 0; b < p.blocks.size(); ++b) batch.memory[b] = p.blocks[b].memory * scale / 2;
    for (Bytes& workspace : batch.workspace) workspace = random.chance(10) ? 1 : workspace;
    for (Bytes& bytes : batch.bytes) bytes = random.below(3);
    one.sizes.push_back(batch);
  }
  for (Device& device : p.devices)
    if (random.chance(70)) device.memory = 4 + random.below(8);
  return one;
}

}  // namespace ostinato::test
