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
  /// O(devices * k^2 * widths * edges), k blocks a device, for M3 where a device has blocks of several
  /// widths; O(takers * edges) for M4. Large placements: at most 2^30 for M3, no M4 from 2^28 on.
  explicit Bounds(const Instance& instance);

  Nanoseconds period(int unroll) const;           ///< P1, P2
  Nanoseconds makespan(int micro_batches) const;  ///< M1 to M4; O(blocks log blocks)
  Nanoseconds span(int micro_batches) const;      ///< S1 to S3; O(devices * (edges + blocks log blocks))
  Nanoseconds latency() const;                    ///< L1
  Nanoseconds of(Objective objective, int micro_batches) const;

  /// Of one micro-batch on d; absent where M4 does not apply to it.
  const std::optional<Area>& area(int d) const { return areas_[d]; }
  const Matchings& held() const { return held_; }

 private:
  /// fixed + micro_batches * work.
  struct Line {
    Nanoseconds fixed;
    Nanoseconds work;
  };
  void add_lines(int d);
  void add_shared_lines(const std::vector<int>& work, Nanoseconds load);
  Nanoseconds between_starts(int d, int micro_batches) const;
  Nanoseconds idle_before(const std::vector<int>& work, int width, bool backwards) const;

  const Instance& in_;
  std::int64_t size_;  ///< blocks and edges
  Matchings held_;
  std::vector<Line> lines_;  ///< of the makespan (M3)
  std::vector<std::optional<Area>> areas_;
};

}  // namespace ostinato
