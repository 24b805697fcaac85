#pragma once
// The repetend: a schedule of `unroll` micro-batches that can start again every `period`.
//
// Modulo scheduling over the whole graph: every block x has one start T(x) that may lie beyond the period.
// Two blocks x, y that share a device never meet if for some whole number k
//     t(x) + k * period <= T(y) - T(x) <= (k + 1) * period - t(y).
// The search branches on k, pair by pair; all else are difference constraints, kept as a matrix of longest
// paths. k counts by how many repetends y runs later than x (its "stage" relative to x), and the memory of a
// device in the steady state is a function of these numbers alone. A feasible period stays feasible when it
// grows (scale all starts), so the least one is found by bisection, and each solution is tightened to the
// least period that its k admit. Sources: Tessel (arXiv 2311.15269), section 4; Eichenberger, Davidson (1997)
// for modulo constraints.
//
//   Repetend r = find_repetend(in, bounds, 1, {});
//   r.start[b] + i * r.period      // start of block b of micro-batch i, in the steady state

#include <cstdint>
#include <functional>
#include <vector>

#include "search/bounds.h"
#include "search/instance.h"

namespace ostinato {

struct Repetend {
  Nanoseconds period = 0;  ///< 0: none was found
  int unroll = 1;
  std::vector<Nanoseconds> start;  ///< [copy * blocks + block], copy < unroll: starts of the first repetend
};

struct RepetendOptions {
  std::int64_t nodes = 4000;       ///< branches tried per period
  std::int64_t work = 30'000'000;  ///< entries of constraint matrices looked at, in all
  Nanoseconds below = 0;           ///< only periods below this are wanted; 0: any
  std::function<bool()> stop = {};
};

/// The repetend with the least period found. O(nodes * (pairs + items^2)) per period, items = unroll *
/// blocks.
Repetend find_repetend(const Instance& instance, const Bounds& bounds, int unroll,
                       const RepetendOptions& options);

}  // namespace ostinato
