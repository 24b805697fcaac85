// SPDX-License-Identifier: Apache-2.0
// The repetend against all starts of tiny placements, tried one by one.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "search/repetend/repetend.h"
#include "tests/search/all_repetends.h"
#include "tests/search/random_plan.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::AllRepetends;
using test::Peaks;
using test::Random;

/// Some blocks with random edges; some take memory that a later block on the same devices gives back.
Placement tiny(Random& random, int blocks) {
  Placement p = test::on_devices(static_cast<int>(random.between(1, 3)));
  const int devices = static_cast<int>(p.devices.size());
  p.link.latency = random.chance(30) ? random.between(1, 3) : 0;
  for (int b = 0; b < blocks; ++b) {
    const int first = static_cast<int>(random.between(0, devices - 1));
    std::vector<int> on = {first};
    if (first + 1 < devices && random.chance(30)) on.push_back(first + 1);
    std::vector<int> after;
    for (int a = 0; a < b; ++a) {
      if (random.chance(a == b - 1 ? 70 : 15)) after.push_back(a);
    }
    test::BlockOptions options{.workspace = random.chance(20) ? 1 : 0, .after = after};
    const int taker = static_cast<int>(random.between(0, std::max(0, b - 1)));
    if (b > 0 && p.blocks[taker].memory == 0 && random.chance(60)) {
      p.blocks[taker].memory = random.between(1, 2);
      options.memory = -p.blocks[taker].memory;
      on = p.blocks[taker].devices;
      if (std::find(after.begin(), after.end(), taker) == after.end()) options.after.push_back(taker);
    }
    test::add(p, fmt::format("b{}", b), on, random.between(1, 3), options);
  }
  for (Device& device : p.devices) {
    device.static_memory = random.between(0, 2);
    if (random.chance(60)) device.memory = device.static_memory + random.between(2, 4);
  }
  return p;
}

Peaks peaks_of(const Placement& p, const Repetend& r) {
  const Instance in(p);
  Peaks peaks{0, 0};
  const std::vector<Bytes> held = held_by(in, r);
  for (std::size_t d = 0; d < held.size(); ++d) {
    const Bytes peak = held[d] + p.devices[d].static_memory;
    peaks.largest = std::max(peaks.largest, peak);
    peaks.total += peak;
  }
  return peaks;
}

void expect_least(const Placement& p, int unroll) {
  const Instance in(p);
  const Bounds bounds(in);
  const Repetend found = find_repetend(in, bounds, unroll, {});
  if (found.period == 0) {  // so does one block after another
    EXPECT_FALSE(AllRepetends(p, 1, 40).best());
    return;
  }
  const Repetend least = with_least_memory(in, found, {});
  EXPECT_TRUE(least.period_proved && least.memory_proved);
  EXPECT_EQ(least.period, found.period);
  for (Nanoseconds period = unroll * in.heaviest_load(); period < found.period; ++period) {
    EXPECT_FALSE(AllRepetends(p, unroll, period).best()) << "a period of " << period;
  }
  const std::optional<Peaks> best = AllRepetends(p, unroll, found.period).best();
  ASSERT_TRUE(best) << "no period of " << found.period;
  EXPECT_EQ(peaks_of(p, least).largest, best->largest);
  EXPECT_EQ(peaks_of(p, least).total, best->total);
}

TEST(RepetendBruteForce, LeastPeriodAndMemoryOfOneMicroBatch) {
  Random random(11);
  for (int i = 0; i < 240; ++i) {
    SCOPED_TRACE(i);
    expect_least(tiny(random, static_cast<int>(random.between(2, 4))), 1);
  }
}

TEST(RepetendBruteForce, LeastPeriodAndMemoryOfTwoMicroBatches) {
  Random random(12);
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    expect_least(tiny(random, static_cast<int>(random.between(2, 3))), 2);
  }
}

}  // namespace
}  // namespace ostinato
