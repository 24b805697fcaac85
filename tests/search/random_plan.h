// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random small placements, valid plans for them, and a slow oracle that judges a plan by the words of
// docs/formats.md alone. Everything is deterministic: the same seed gives the same placement on every
// machine.

#include <cstdint>
#include <string>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato::test {

/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers everywhere, unlike the standard's distributions.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  /// In [low, high].
  std::int64_t between(std::int64_t low, std::int64_t high);
  bool chance(int percent) { return between(1, 100) <= percent; }

 private:
  std::uint64_t state_;
};

/// Up to 4 devices and 8 blocks: chains and diamonds, blocks on several devices, blocks of no time,
/// workspace, links with latency and bandwidth; memory that is taken and given back. Unlimited devices:
/// limit_memory() sets the limits.
Placement random_placement(Random& random);

/// A valid plan by starting the steps one by one, each when its inputs and devices allow and a little later
/// at random; its figures are right, it claims no repeating part and bounds of 0.
Plan random_plan(const Placement& placement, int micro_batches, Random& random, int lazy_percent = 20);

/// Sets each device's capacity to what the plan needs there, plus `spare` bytes.
void limit_memory(Placement& placement, const Plan& plan, Bytes spare);

/// Lists the steps as docs/formats.md asks, and sets makespan, span and peak memory.
void complete_figures(Plan& plan, const Placement& placement);

/// "" for a valid plan, else the rule that it breaks. Written from docs/formats.md without regard to speed:
/// every pair of steps, every instant at which something starts or ends. It does not judge bounds.
std::string oracle(const Plan& plan, const Placement& placement);

}  // namespace ostinato::test
