#pragma once
// The checker's own proof of a claimed bound: the statements of docs/bounds.md first, and where they fall
// short of a claim that may be true, the trial of all schedules (section E).
//
//   const Bound b = prove_makespan(bounds, {"lower_bound.makespan", 8, claim, plan.makespan}, most_work,
//   report); b.value >= claim ? pass(b.why) : fail(...)

#include "search/checker_bounds.h"
#include "search/checker_timetable.h"
#include "search/plan.h"

namespace ostinato::checker {

/// "No schedule of n micro-batches ends before `value`", of a placement for which one is known.
struct MakespanClaim {
  const char* key;  ///< of the plan, for messages
  int micro_batches;
  Nanoseconds value;
  Nanoseconds known;  ///< makespan of that schedule: a claim above it is false, and not tried
};

/// What is proved, which may be less than the claim. Spends at most `most_work` (checker_exhaust.h), and
/// reports where that was not enough or a better schedule turned up.
Bound prove_makespan(const Bounds& bounds, const MakespanClaim& claim, std::int64_t most_work,
                     Report& report);

/// What the statements prove of the objective. Stops at the first bound of the makespan that reaches
/// `enough`.
Bound bound_of(const Bounds& bounds, Objective objective, int micro_batches, Wide enough);

}  // namespace ostinato::checker
