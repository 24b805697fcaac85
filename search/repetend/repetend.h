// SPDX-License-Identifier: Apache-2.0
#pragma once
// The repetend: a schedule of `unroll` micro-batches that can start again every `period`.
//
// Modulo scheduling over the whole graph: every block x has one start T(x) that may lie beyond the period.
// Two blocks x, y that share a device never meet if for some whole number k
//     t(x) + k * period <= T(y) - T(x) <= (k + 1) * period - t(y).
// k counts by how many repetends y runs later than x (its "stage" relative to x), and the memory of a device
// in the steady state is a function of these numbers alone. A feasible period stays feasible when it grows
// (keep phases and stages), so the least one is found by bisection, and each solution is tightened to the
// least period that its k admit. Sources: Tessel (arXiv 2311.15269), section 4; Eichenberger, Davidson (1997)
// for modulo constraints.
//
//   Repetend r = find_repetend(in, bounds, 1, {});
//   r.start[b] + i * r.period      // start of block b of micro-batch i, in the steady state
//   r = with_least_memory(in, r, {});

#include <cstdint>
#include <functional>
#include <vector>

#include "search/bounds/bounds.h"
#include "search/placement/instance.h"

namespace ostinato {

struct Repetend {
  Nanoseconds period = 0;  ///< 0: none was found
  int unroll = 1;
  std::vector<Nanoseconds> start;  ///< [copy * blocks + block], copy < unroll: starts of the first repetend
  bool period_proved = false;      ///< no repetend of as many micro-batches has a shorter one
  Nanoseconds refuted = 0;         ///< none of as many has a period up to this
  bool memory_proved = false;      ///< none with this period holds less on the device that holds most
};

/// Micro-batches that a repetend is searched for at most.
inline constexpr int kMostUnroll = 5;

struct RepetendOptions {
  std::int64_t nodes = 4000;        ///< branches tried per period, or per limit of memory
  std::int64_t work = 30'000'000;   ///< entries of constraint matrices looked at, in all
  std::int64_t swept = 16'000'000;  ///< phases that sweeps (sweep.h) look at, in all
  std::int64_t part = 1;            ///< one period takes one in so many of the work that is left, at most
  Nanoseconds below = 0;            ///< only periods below this are wanted; 0: any
  std::function<bool()> stop = {};
};

/// The repetend with the least period found: by list scheduling (repetend/list.h) where that meets the bound,
/// else by exact search below it (modulo.h), O(nodes * (pairs + items^2)) per period, items = unroll *
/// blocks.
Repetend find_repetend(const Instance& instance, const Bounds& bounds, int unroll,
                       const RepetendOptions& options);

/// For 1, 2, ... micro-batches up to `most_unroll`, each at a better rate than the one before; ends where one
/// meets its bound, and more of them could save a fraction of a nanosecond at most, of a period of many. The
/// last one is the best. All are better than `known`, where there is one.
std::vector<Repetend> repetends_of_growing_rate(const Instance& instance, const Bounds& bounds,
                                                int most_unroll, RepetendOptions options,
                                                const Repetend* known = nullptr);

/// More at growing rates, all better than the last of `found`, by sweeps over the devices (sweep.h), where
/// memory is tight: O(options.swept), and twice as much for 125 to 1,000 blocks.
std::vector<Repetend> swept_repetends(const Instance& instance, const Bounds& bounds,
                                      const std::vector<Repetend>& found, const RepetendOptions& options);

/// A repetend with the same period and unroll that holds less: the device that holds most (static memory
/// counts) as little as possible, then all devices together. Exact search as above; above kMostItems items
/// the repetend is returned as it is.
Repetend with_least_memory(const Instance& instance, Repetend repetend, const RepetendOptions& options);

/// Others of the same period and as many micro-batches, all different: list schedules in which some blocks
/// wait, and what branching in other orders finds. O(options.work), and as long for the lists.
std::vector<Repetend> others_like(const Instance& instance, const Repetend& like, RepetendOptions options);

/// What each device holds at most in the steady state, beyond static memory; at most what makes 2^63 - 2 with
/// it, however much it is. O(k^2) a device, k items on it.
std::vector<Bytes> held_by(const Instance& instance, const Repetend& repetend);

/// How the memory of two repetends compares.
struct RepetendMemory {
  Bytes largest = 0;   ///< of all devices, with static memory
  __int128 total = 0;  ///< held_by(), summed up
  friend auto operator<=>(const RepetendMemory&, const RepetendMemory&) = default;
};
RepetendMemory memory_of(const Instance& instance, const Repetend& repetend);

}  // namespace ostinato
