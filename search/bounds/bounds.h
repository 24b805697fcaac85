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
#include "search/bounds/spacing.h"
#include "search/placement/instance.h"
#include "search/plan/plan.h"

namespace ostinato {

class Bounds {
 public:
  /// O(takers * edges) for M3; large placements: none from 2^28 on.
  explicit Bounds(const Instance& instance);

  Nanoseconds period(int unroll) const;  ///< P1, P2, P3
  /// M1, M2, M3, M7, and of M6 what costs little; O(blocks log blocks).
  Nanoseconds makespan(int micro_batches) const;
  Nanoseconds span(int micro_batches) const;  ///< S1 to S3; O(devices * (edges + blocks log blocks))
  Nanoseconds latency() const;                ///< L1
  Nanoseconds of(Objective objective, int micro_batches) const;

  /// Of one micro-batch on d; absent where M3 does not apply to it.
  const std::optional<Area>& area(int d) const { return areas_[d]; }
  const Matchings& held() const { return held_; }

 private:
  /// Of each block of one micro-batch its time, and the longest paths from an end to its start and from its
  /// end to the other; -1: there is none.
  struct Paths {
    std::vector<Nanoseconds> time, before, after;
    Nanoseconds cut_out = 0;  ///< of every micro-batch, beside them (M6)
  };
  /// Paths that begin and end where `ends` is 0, and not where it is -1; O(edges).
  Paths paths(std::vector<Nanoseconds> time, std::vector<Nanoseconds> ends, bool transfers) const;
  /// What is left where a set is cut out, and nothing of it stays.
  Paths beside(const std::vector<int>& cut) const;
  /// M2, or S1 where the paths are those from a device and back to it. With one block, it is M1, or S2.
  Nanoseconds busiest(const Paths& paths, int micro_batches) const;

  const Instance& in_;
  Matchings held_;
  std::vector<Paths> paths_;  ///< of all blocks, and beside each set that is cut out
  std::vector<std::optional<Area>> areas_;
  std::vector<Spacing> spacings_;
};

}  // namespace ostinato
