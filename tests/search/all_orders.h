// SPDX-License-Identifier: Apache-2.0
#pragma once
// An enumeration of all orders, and tiny placements of every kind that it can solve.
//
//   Dice random(7);
//   Placement p = any_small(random, 5);
//   add_memory(random, p);
//   std::optional<Nanoseconds> least = AllOrders(p, 2).least();     // nullopt: no order fits

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "search/placement/placement.h"
#include "tests/search/small.h"

namespace ostinato::test {

/// Appends every step in turn at its earliest start, whatever the order: all orders on all devices are
/// reached. Knows nothing of the search but the placement.
class AllOrders {
 public:
  AllOrders(const Placement& p, int micro_batches) : p_(p), n_(micro_batches) {
    end_.assign(p.blocks.size(), std::vector<Nanoseconds>(micro_batches, -1));
    free_.assign(p.devices.size(), 0);
    for (const Device& device : p.devices) used_.push_back(device.static_memory);
  }

  /// The least makespan; nullopt if no order fits.
  std::optional<Nanoseconds> least() {
    append(static_cast<int>(p_.blocks.size()) * n_, 0);
    return best_;
  }

 private:
  void append(int left, Nanoseconds makespan) {
    if (best_ && makespan >= *best_) return;
    if (left == 0) {
      best_ = makespan;
      return;
    }
    for (std::size_t b = 0; b < p_.blocks.size(); ++b) {
      for (int i = 0; i < n_; ++i) {
        if (end_[b][i] >= 0) continue;
        try_step(static_cast<int>(b), i, left, makespan);
        break;  // identical jobs: in index order
      }
    }
  }

  void try_step(int b, int i, int left, Nanoseconds makespan) {
    const Block& block = p_.blocks[b];
    Nanoseconds start = 0;
    for (const Dependency& input : block.after) {
      if (end_[input.block][i] < 0) return;
      start = std::max(start, end_[input.block][i] + p_.transfer(input, b));
    }
    const Bytes workspace = block.time == 0 ? 0 : block.workspace;
    for (const int d : block.devices) {
      if (used_[d] + std::max<Bytes>(0, block.memory) + workspace > p_.devices[d].memory) return;
      start = std::max(start, free_[d]);
    }
    const std::vector<Nanoseconds> free_before = free_;
    for (const int d : block.devices) {
      free_[d] = start + block.time;
      used_[d] += block.memory;
    }
    end_[b][i] = start + block.time;
    append(left - 1, std::max(makespan, end_[b][i]));
    end_[b][i] = -1;
    for (const int d : block.devices) used_[d] -= block.memory;
    free_ = free_before;
  }

  const Placement& p_;
  int n_;
  std::vector<std::vector<Nanoseconds>> end_;
  std::vector<Nanoseconds> free_;
  std::vector<Bytes> used_;
  std::optional<Nanoseconds> best_;
};

class Dice {
 public:
  explicit Dice(unsigned seed) : engine_(seed) {}
  /// Each number from the next byte, and 0 behind the last: who chooses the bytes (a fuzzer) throws the dice.
  explicit Dice(std::string_view bytes) : bytes_(bytes) {}
  int below(int n) { return static_cast<int>((bytes_ ? byte() : engine_()) % static_cast<unsigned>(n)); }
  bool chance(int percent) { return below(100) < percent; }

 private:
  unsigned byte() {
    if (bytes_->empty()) return 0;
    const auto first = static_cast<unsigned char>(bytes_->front());
    bytes_->remove_prefix(1);
    return first;
  }

  std::mt19937 engine_;
  std::optional<std::string_view> bytes_;
};

/// Any small graph: skip edges, independent parts, blocks on several devices, links, static memory,
/// workspace.
inline Placement any_small(Dice& random, int blocks) {
  Placement p = on_devices(1 + random.below(3));
  const int devices = static_cast<int>(p.devices.size());
  p.link.latency = random.below(3);
  p.link.bytes_per_second = 1'000'000'000;
  for (int b = 0; b < blocks; ++b) {
    std::vector<int> on;
    for (int d = 0; d < devices; ++d) {
      if (random.chance(25)) on.push_back(d);
    }
    if (on.empty()) on.push_back(random.below(devices));
    std::vector<int> after;
    for (int a = 0; a < b; ++a) {
      if (random.chance(a == b - 1 ? 60 : 15)) after.push_back(a);
    }
    add(p, fmt::format("b{}", b), on, 1 + random.below(5),
        {.workspace = random.chance(20) ? 1 : 0, .after = after, .bytes = random.below(3)});
  }
  return p;
}

/// Gives memory to pairs of blocks on one device of which the second comes after the first, and limits the
/// devices.
inline void add_memory(Dice& random, Placement& p) {
  for (std::size_t a = 0; a < p.blocks.size(); ++a) {
    for (std::size_t b = a + 1; b < p.blocks.size(); ++b) {
      Block& take = p.blocks[a];
      Block& give = p.blocks[b];
      if (take.memory != 0 || give.memory != 0 || take.devices != give.devices || !random.chance(70))
        continue;
      const int bytes = 1 + random.below(2);
      take.memory = bytes;
      give.memory = -bytes;
      if (give.after.empty()) give.after.push_back({static_cast<int>(a), 0});
    }
  }
  for (Device& device : p.devices) {
    device.static_memory = random.below(2);
    if (random.chance(70)) device.memory = device.static_memory + 1 + random.below(4);
  }
}

/// By number of micro-batches: what the enumeration can do.
inline constexpr int most_blocks[] = {0, 7, 5, 3};

}  // namespace ostinato::test
