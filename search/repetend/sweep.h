// SPDX-License-Identifier: Apache-2.0
#pragma once
// A repetend under tight memory, by a sweep over the devices of a pipeline: for placements whose edges form
// trees, except for edges that longer paths imply.
//
// In a tree every edge can have less than a period to spare (modulo_compress.h), so the phases of the blocks
// (start modulo period) say all: the wait of an edge is what the phases of its ends leave, modulo the period.
// What device d holds at most, times the period, is a sum:
//     the matched bytes times how long one micro-batch alone holds them
//   + the matched bytes times the waits of the edges between taking and giving back
//   + what the order on d itself costs: the most that it holds above the mean.
// A waiting edge thus has a price, the sum over the devices of bytes times what a byte costs there. A beam
// places item after item, device after device, and keeps the cheapest state of those with the same phases,
// relative to each other, of all items that something to come waits for or shares a device with: dynamic
// programming along a path decomposition where the beam cuts nothing off. Where devices still hold too much,
// bytes become dearer there, and it begins again (Lagrangian relaxation; Fisher 1981).
//
//   const Sweeps sweeps(in);
//   SweepEffort effort;
//   if (sweeps.apply(1)) if (auto r = sweeps.find(1, period, effort)) use(r->start);

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "search/placement/instance.h"
#include "search/repetend/repetend.h"

namespace ostinato {

/// What sweeps may spend; it counts down. Work is counted, not timed.
struct SweepEffort {
  std::int64_t work = 16'000'000;  ///< phases that are looked at
  std::function<bool()> stop = {};
};

struct SweepTrees;

class Sweeps {
 public:
  /// The instance must outlive this. O(blocks * edges + paths between taking and giving back).
  explicit Sweeps(const Instance& instance);
  ~Sweeps();

  /// Edges form trees, every block takes time, all bytes are matched, a device is limited, and items are few
  /// enough.
  bool apply(int unroll) const;
  /// A repetend of this period that fits the memory, or nullopt where none was found, which proves nothing.
  std::optional<Repetend> find(int unroll, Nanoseconds period, SweepEffort& effort) const;
  /// What divides all times and transfers: other periods gain nothing where it is coarse.
  Nanoseconds grid() const;

 private:
  const Instance& in_;
  std::unique_ptr<const SweepTrees> trees_;  ///< absent: does not apply
};

}  // namespace ostinato
