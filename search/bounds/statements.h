// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bounds that look at every step: M4 to M6, S4 to S6 and E of docs/bounds.md. They cost more than the
// bounds of bounds.h, so the search computes them only when its best plan misses those.
//
//   const Nanoseconds least = bound_by_windows(in, mirror, Objective::makespan, 8, 31, work);
//   const Trial trial = try_all(in, mirror, Objective::makespan, 8, 31, 1'000'000);
//   if (trial.verdict == Trial::none) ...            // no schedule ends before 31
//
// The checker has its own writing of each (search/checker/), and tests compare the two.

#include <cstdint>
#include <functional>

#include "search/placement/instance.h"
#include "search/plan/plan.h"

namespace ostinato {

/// M4 to M6, for the span S4 to S6, for the latency L1 of M4 to M6; 0 where section W computes no windows.
/// S4 and S5 stop where the bound reaches `enough` or `most_work` (Windows::work) is used up; `stop` ends all
/// with what was proved until then. `mirror` is instance.reversed().
Nanoseconds bound_by_windows(const Instance& instance, const Instance& mirror, Objective objective, int n,
                             Nanoseconds enough, std::int64_t most_work,
                             const std::function<bool()>& stop = {});

struct Trial {
  enum Verdict {
    none,          ///< no schedule is better
    some,          ///< one may be
    unknown,       ///< the work was used up
    inapplicable,  ///< section E says nothing about such placements, or the latency of several
  };
  Verdict verdict = inapplicable;
  std::int64_t work = 0;  ///< steps that were tried * blocks: the same on every machine
};

/// E: whether a schedule of n micro-batches has an objective below `below`. O(most_work); `stop` ends it as
/// if that were used up.
Trial try_all(const Instance& instance, const Instance& mirror, Objective objective, int n, Nanoseconds below,
              std::int64_t most_work, const std::function<bool()>& stop = {});

}  // namespace ostinato
