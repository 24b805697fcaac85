// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lower bounds that the checker computes on its own, from the placement alone. docs/bounds.md states and
// proves each; the names there (M1, P2, ...) are the names here.
//
//   const Bounds bounds(placement);
//   Bound b = bounds.makespan(32, plan.lower_bound.makespan);   // stops as soon as the claim is reached
//   b.value >= claim ? pass(b.why) : fail(...)
//
// All sums are in 128 bits: figures up to int64 overflow nothing.

#include <cstdint>
#include <string>
#include <vector>

#include "search/checker/area.h"
#include "search/checker/exhaust.h"
#include "search/checker/graph.h"
#include "search/checker/spacing.h"

namespace ostinato::checker {

/// Work of S4 (Windows::work) after which no further device is looked at: about a second.
inline constexpr std::int64_t kMostSpanWork = 100'000'000;

/// Devices times (blocks + edges) that S1 and S2 look at as origins.
inline constexpr Wide kMostOrigins = 1 << 26;

/// Blocks that are cut out, times (blocks + edges): beyond it and W's limits a set is not tried for M6.
inline constexpr Wide kMostCutWork = 1 << 26;

struct Bound {
  Wide value = 0;
  std::string why = "no time is negative";  ///< or which statement, on which device or block
};

class Bounds {
 public:
  /// The placement must have no cycle; it must outlive this.
  explicit Bounds(const Placement& placement) : Bounds(placement, {}) {}

  /// M1 to M7: no schedule of n micro-batches ends earlier. Stops at the first bound that reaches `enough`.
  Bound makespan(int n, Wide enough) const;
  /// P1 to P3: nothing that repeats `unroll` micro-batches for ever has a smaller period.
  Bound period(int unroll) const;
  /// S1 to S6. S4 and S5 stop at the first bound that reaches `enough`, and after `most_work`
  /// (Windows::work).
  Bound span(int n, Wide enough, std::int64_t most_work = kMostSpanWork) const;
  /// M4 to M6 alone.
  Bound makespan_by_windows(int n) const;
  /// L1.
  Bound latency() const;
  /// E: whether a schedule of n micro-batches ends before `below`.
  Exhaustion exhaust(int n, Nanoseconds below, std::int64_t most_work) const;
  /// E: whether a schedule of n micro-batches has a span below `below`. Verdict::none as soon as one device
  /// cannot have; never Verdict::some.
  Exhaustion exhaust_span(int n, Nanoseconds below, std::int64_t most_work) const;

 private:
  /// Where no transfer from a block takes longer than `longest` says.
  Bounds(const Placement& placement, const std::vector<Wide>& longest);

  void one_micro_batch(Bound& best) const;                // M1
  void one_device(int n, Bound& best) const;              // M2
  void memory(int n, bool borders, Bound& best) const;    // M3, without borders S3
  void spacing(int n, Bound& best) const;                 // M7
  void windows(int n, Bound& best) const;                 // M4, M5
  void around_several_devices(int n, Bound& best) const;  // M6
  /// What is left beside a set that is cut out: M3 to M5, or M2 alone.
  Bound beside(int n, bool all) const;
  void between_own_blocks(int n, Bound& best) const;  // S1, S2
  void whole_steps(int n, Bound& best) const;         // S6

  Graph graph_;
  std::vector<Area> areas_;    ///< of each device
  std::vector<Apart> aparts_;  ///< of all
};

}  // namespace ostinato::checker
