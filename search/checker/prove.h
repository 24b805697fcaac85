// SPDX-License-Identifier: Apache-2.0
#pragma once
// The checker's own proof of a claimed bound: the statements of docs/bounds.md first, and where they fall
// short of a claim that may be true, the trial of all schedules (section E).
//
//   const Claim span{"lower_bound.span", Objective::span, 8, claim, plan.span};
//   const Bound b = prove(bounds, span, most_work, report);
//   b.value >= claim ? pass(b.why) : fail(...)

#include <string>

#include "search/checker/bounds.h"
#include "search/checker/timetable.h"
#include "search/plan/plan.h"

namespace ostinato::checker {

/// "No schedule of n micro-batches has an objective below `value`", of a placement for which one is known.
struct Claim {
  std::string key;  ///< of the plan, for messages
  Objective objective;
  int micro_batches;
  Nanoseconds value;
  Nanoseconds known;  ///< what that schedule has: a claim above it is false, and not tried
};

/// What is proved, which may be less than the claim. Spends at most `most_work` (checker/exhaust.h), and
/// reports where that was not enough or a better schedule turned up.
Bound prove(const Bounds& bounds, const Claim& claim, std::int64_t most_work, Report& report);

/// What the statements prove of the objective. Stops at the first bound that reaches `enough`.
Bound bound_of(const Bounds& bounds, Objective objective, int micro_batches, Wide enough);

/// Whether a schedule has an objective below `below` (section E); Verdict::inapplicable of the latency.
Exhaustion try_all(const Bounds& bounds, Objective objective, int micro_batches, Nanoseconds below,
                   std::int64_t most_work);

}  // namespace ostinato::checker
