// SPDX-License-Identifier: Apache-2.0
#pragma once
// Branch and bound over the orders of the devices, for every objective: two steps of one device run in one
// order or in the other, and within the objective that is asked for most pairs have no choice.
//
//   OrderSearchOptions options{.objective = Objective::span, .below = 105};
//   OrderSearchResult found = search_orders(in, 1, options);
//   if (found.sequence.empty() && found.complete) ...      // no span is below 105
//
// That an objective is below a limit are arcs, too: of each of its groups (group_starts.h) no step ends later
// than the limit after another one starts. So one set of longest paths says of every pair whether an order
// leads to a circle (Carlier, Pinson 1989), whatever the objective. What the memory of a device leaves no
// choice is decided with it; the pair with the least slack is branched on first (Smith, Cheng 1993).

#include <cstdint>
#include <functional>
#include <vector>

#include "search/placement/instance.h"
#include "search/plan/plan.h"

namespace ostinato {

struct OrderSearchOptions {
  Objective objective = Objective::makespan;
  Nanoseconds below = 0;  ///< only schedules with an objective below this are wanted
  std::int64_t work = 20'000'000;
  std::function<bool()> stop = {};  ///< asked now and then; empty: never
};

struct OrderSearchResult {
  std::vector<int> sequence;  ///< blocks by start; the i-th mention is micro-batch i; empty: none was found
  bool complete = false;      ///< all orders were covered, up to the one that was found
  std::int64_t work = 0;      ///< a clock that runs alike on every machine
};

/// Few enough steps, and no memory that blocks take or give back in no time: what they give back at an
/// instant counts before what they take at it, whatever their order.
bool orders_can_be_searched(const Instance& instance, int micro_batches);

/// No schedule without idle time has an objective as long as this. The sums of a placement's times fit.
Nanoseconds beyond_all_schedules(const Instance& instance, int micro_batches);

/// The first schedule below the limit that is found. O(work), and O(steps^2) memory.
OrderSearchResult search_orders(const Instance& instance, int micro_batches,
                                const OrderSearchOptions& options);

/// The same among schedules near `sequence`: repeatedly frees some consecutive steps, or the steps of two
/// micro-batches, while the rest keep their order (large neighbourhoods: Shaw 1998). The same `seed` frees
/// the same steps. Never `complete`.
OrderSearchResult search_near(const Instance& instance, int micro_batches, const OrderSearchOptions& options,
                              const std::vector<int>& sequence, std::uint64_t seed);

}  // namespace ostinato
