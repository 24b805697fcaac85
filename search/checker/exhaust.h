// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether any schedule ends sooner than a plan says that none does: all of them are tried.
//
//   Exhaustion e = exhaust(graph, windows, 8, 31);     // is there a schedule of 8 micro-batches below 31?
//   e.verdict == Verdict::none                         // no: 31 is a lower bound
//
// Breadth-first over partial schedules (checker/partial.h), level by level: all of a level have as many
// steps. A schedule goes on only if no other with equal counts dominates it and it can still end in time.
// docs/bounds.md, section E, proves that nothing is lost.

#include <cstdint>

#include "search/checker/windows.h"

namespace ostinato::checker {

enum class Verdict {
  none,          ///< no schedule ends before the limit
  some,          ///< there is one
  unknown,       ///< the work was used up before either was shown
  inapplicable,  ///< blocks of no time that change memory, figures that do not fit, steps before the origin
};

struct Exhaustion {
  Verdict verdict = Verdict::unknown;
  std::int64_t work = 0;  ///< steps that were tried * blocks of the placement: the same on every machine
};

/// Is there a schedule of n micro-batches that ends before `below`? Forwards in time first; where three
/// quarters of the work show nothing, backwards with the rest. O(work) time and memory.
/// Where the windows have an origin: one in which that device ends before `below`, counted from its first
/// start. That is asked only in directions in which all paths begin at the origin.
Exhaustion exhaust(const Graph& graph, const Windows& windows, int n, Nanoseconds below,
                   std::int64_t most_work);

/// Whether nothing starts before the device does, backwards whether nothing ends after it has. O(blocks).
bool all_from(const Graph& graph, int device, bool backwards);

}  // namespace ostinato::checker
