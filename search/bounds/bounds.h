#pragma once
// Proven lower bounds. docs/bounds.md states each (P1, M1, ...) and proves it; the checker computes them
// again from there.
//
//   const Bounds bounds(instance);
//   Nanoseconds least = bounds.makespan(32);     // no schedule of 32 micro-batches ends earlier

#include <optional>
#include <vector>

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

  /// Memory-time that one micro-batch needs on d (M4), in byte-nanoseconds; absent where M4 does not apply to
  /// d.
  struct Area {
    __int128 bytes_time = 0;
    Nanoseconds head = 0;
    Nanoseconds tail = 0;
  };
  const std::optional<Area>& area(int d) const { return areas_[d]; }

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
  std::int64_t size_;        ///< blocks and edges
  std::vector<Line> lines_;  ///< of the makespan (M3)
  std::vector<std::optional<Area>> areas_;
};

/// The longest time from the start of block `from` to the end of every block (-1: no path). O(edges).
std::vector<Nanoseconds> distances_from(const Instance& instance, int from);

}  // namespace ostinato
