// SPDX-License-Identifier: Apache-2.0
#pragma once
// Proven lower bounds. docs/bounds.md states each (P1, M1, ...) and proves it; the checker computes them
// again from there.
//
//   const Bounds bounds(instance);
//   Nanoseconds least = bounds.makespan(32);     // no schedule of 32 micro-batches ends earlier

#include <optional>
#include <vector>

#include "search/bounds/matching.h"
#include "search/placement/instance.h"
#include "search/plan/plan.h"

namespace ostinato {

class Bounds {
 public:
  /// O(takers * edges) for M3; large placements: none from 2^28 on.
  explicit Bounds(const Instance& instance);

  Nanoseconds period(int unroll) const;  ///< P1, P2
  /// M1, M2, M3 and of M6 what costs little; O(blocks log blocks).
  Nanoseconds makespan(int micro_batches) const;
  Nanoseconds span(int micro_batches) const;  ///< S1 to S3; O(devices * (edges + blocks log blocks))
  Nanoseconds latency() const;                ///< L1
  Nanoseconds of(Objective objective, int micro_batches) const;

  /// Of one micro-batch on d; absent where M3 does not apply to it.
  const std::optional<Area>& area(int d) const { return areas_[d]; }
  const Matchings& held() const { return held_; }

 private:
  /// What is left of one micro-batch where a set is cut out.
  struct Beside {
    Nanoseconds cut_out = 0;
    std::vector<Nanoseconds> time, head, tail;  ///< of each block
  };
  Beside beside(const std::vector<int>& cut) const;
  Nanoseconds around_several_devices(int micro_batches) const;
  Nanoseconds between_starts(int d, int micro_batches) const;

  const Instance& in_;
  std::int64_t size_;  ///< blocks and edges
  Matchings held_;
  std::vector<Beside> beside_;
  std::vector<std::optional<Area>> areas_;
};

}  // namespace ostinato
