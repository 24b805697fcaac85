// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tiny placements of kinds that no shape makes: blocks of no time, blocks that give back more than they take,
// blocks on some of the devices, times from 1 to 10^12, memory up to the most that is planned (2^62), choices
// that do not fit as written.
//
//   Dice random(7);
//   Placement p = strange(random, 4);
//   add_choices(random, p);
//   if (random.chance(10)) enlarge(p, micro_batches);

#include <fmt/format.h>

#include <cstdlib>

#include "tests/search/all_orders.h"

namespace ostinato::test {

inline Placement strange(Dice& random, int blocks) {
  constexpr Nanoseconds seconds = 1'000'000'000;
  const Nanoseconds unit = random.chance(60) ? 1 : random.chance(50) ? 1000 : 200 * seconds;
  const Bytes grain = random.chance(70) ? 1 : Bytes{1} << (20 + random.below(34));
  const bool any_times = random.chance(15), takes_no_time = random.chance(50);
  Placement p = on_devices(1 + random.below(3));
  const int devices = static_cast<int>(p.devices.size());
  if (random.chance(50)) p.link = {.latency = unit * random.below(3), .bytes_per_second = 1'000'000'000};
  for (int b = 0; b < blocks; ++b) {
    std::vector<int> on, after;
    for (int d = 0; d < devices; ++d) {
      if (random.chance(25)) on.push_back(d);
    }
    if (on.empty()) on.push_back(random.below(devices));
    for (int a = 0; a < b; ++a) {
      if (random.chance(a == b - 1 ? 55 : 15)) after.push_back(a);
    }
    Nanoseconds time = unit * (1 + random.below(4));
    if (any_times) {
      time = 1 + random.below(9);
      for (int zeros = random.below(12); zeros > 0; --zeros) time *= 10;
    }
    if (takes_no_time && random.chance(35)) time = 0;
    add(p, fmt::format("b{}", b), on, time,
        {.workspace = random.chance(20) ? grain : 0, .after = after, .bytes = random.below(3)});
  }
  const bool balanced = random.chance(50), any = random.chance(70);
  if (any && balanced) {
    add_memory(random, p);
    for (Block& block : p.blocks) block.memory *= grain;
  } else if (any) {
    for (Block& block : p.blocks) block.memory = random.chance(60) ? grain * (random.below(8) - 4) : 0;
  }
  for (Device& device : p.devices) {
    device.static_memory = grain * random.below(2);
    device.memory = !any || random.chance(30) ? kUnlimited : grain * random.below(7);
    if (random.chance(10)) device.memory = Bytes{1} << 62;
  }
  return p;
}

/// Forwards and backwards of one or two stages, where more memory is a shorter plan. Some take no time, some
/// backwards give back more or less than their forward took.
inline Placement strange_pipeline(Dice& random) {
  const int stages = 1 + random.below(2);
  Placement p = on_devices(stages);
  if (random.chance(40)) p.link.latency = random.below(3);
  const auto time = [&] { return random.chance(15) ? 0 : 1 + random.below(4); };
  for (int s = 0; s < stages; ++s) {
    const std::vector<int> after = s == 0 ? std::vector<int>{} : std::vector<int>{s - 1};
    add(p, fmt::format("F{}", s), {s}, time(), {.memory = 1 + random.below(3), .after = after});
  }
  for (int s = stages - 1; s >= 0; --s) {
    const std::vector<int> after =
        s == stages - 1 ? std::vector<int>{s} : std::vector<int>{s, 2 * stages - 2 - s};
    const Bytes more = random.chance(80) ? 0 : random.below(3) - 1;
    add(p, fmt::format("B{}", s), {s}, time(),
        {.memory = -p.blocks[s].memory - more, .workspace = random.chance(20) ? 1 : 0, .after = after});
  }
  for (Device& device : p.devices) {
    device.static_memory = random.below(2);
    if (random.chance(30)) device.memory = 2 + random.below(8);
  }
  return p;
}

/// All memory as many times as large as `micro_batches` allow (check_totals).
inline void enlarge(Placement& p, int micro_batches) {
  std::vector<Bytes*> amounts;
  for (Block& block : p.blocks) amounts.insert(amounts.end(), {&block.memory, &block.workspace});
  Bytes total = 1;  // far below 2^62, as strange() draws it
  for (const Bytes* amount : amounts) total += std::abs(*amount) * micro_batches;
  for (Device& device : p.devices) {
    total += device.static_memory;
    amounts.push_back(&device.static_memory);
  }
  const Bytes times = (Bytes{1} << 62) / total;
  for (Bytes* amount : amounts) *amount *= times;
  for (Device& device : p.devices) {
    if (device.memory < kUnlimited / times) device.memory *= times;
  }
}

/// All times as many times as long as `micro_batches` allow (check_totals).
inline void lengthen(Placement& p, int micro_batches) {
  std::vector<Nanoseconds*> times = {&p.link.latency};
  Nanoseconds total = 1;  // far below 2^60, as strange() draws it
  for (std::size_t b = 0; b < p.blocks.size(); ++b) {
    times.push_back(&p.blocks[b].time);
    for (const Dependency& input : p.blocks[b].after)
      total += p.transfer(input, static_cast<int>(b)) * micro_batches;
  }
  for (const Nanoseconds* time : times) total += *time * micro_batches;
  const Nanoseconds factor = (Nanoseconds{1} << 60) / total;
  for (Nanoseconds* time : times) *time *= factor;
}

}  // namespace ostinato::test
