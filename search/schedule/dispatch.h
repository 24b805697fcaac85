// SPDX-License-Identifier: Apache-2.0
#pragma once
// Dispatching: whenever a device is free it starts the ready step of the highest priority. Cheap enough for
// any size.
//
//   for (const DispatchRule& rule : dispatch_rules(in)) best.offer(dispatch(in, n, rule), "dispatch");

#include <functional>
#include <vector>

#include "search/placement/instance.h"

namespace ostinato {

enum class Priority {
  oldest,   ///< the lowest micro-batch, then the longest tail
  longest,  ///< the longest tail
  deepest,  ///< the longest head; what nothing waits for (weight gradients) last
  due,  ///< the earliest due date: micro-batch i is due i loads of the busiest device later than the first
};

struct DispatchRule {
  Priority priority = Priority::oldest;
  int in_flight = 0;  ///< a micro-batch starts only while fewer than this are unfinished; 0: no limit
  /// Forwards before backwards, then blocks on more devices before those on fewer, then `priority`. A block
  /// that needs all devices then finds them aligned, and a device that two chains cross in opposite
  /// directions is never left without work: its neighbours hold up only steps that none waits for yet.
  bool phases = false;
  /// A free device waits for a step that the rule ranks above the ready ones, if it can still be done so long
  /// after its first start: one step too many ahead of it would delay all that wait for it. 0: never waits.
  Nanoseconds span = 0;
  /// Blocks without inputs start only at multiples of this (beat.h). 0: at any time.
  Nanoseconds beat = 0;
};

/// Phases first, which meets the bound of most placements with unlimited memory; then every priority with
/// several limits on micro-batches in flight, most useful first.
std::vector<DispatchRule> dispatch_rules(const Instance& instance);

/// Blocks in the order of their starts (the i-th mention of a block is its micro-batch i). Empty where memory
/// leads into a deadlock, where it makes the ready steps of a device be looked at too often, and where `stop`
/// says so. O(steps * log steps) and what memory makes look at; with a span, O(steps * blocks on a device).
std::vector<int> dispatch(const Instance& instance, int micro_batches, const DispatchRule& rule,
                          const std::function<bool()>& stop = {});

}  // namespace ostinato
