// SPDX-License-Identifier: Apache-2.0
#include "search/checker/prove.h"

#include <fmt/format.h>

namespace ostinato::checker {

Bound prove(const Bounds& bounds, const Claim& claim, std::int64_t most_work, Report& report) {
  Bound proved = bound_of(bounds, claim.objective, claim.micro_batches, claim.value);
  if (proved.value >= claim.value || claim.value > claim.known) return proved;
  const Exhaustion tried = try_all(bounds, claim.objective, claim.micro_batches, claim.value, most_work);
  switch (tried.verdict) {
    case Verdict::none:
      return {claim.value, fmt::format("E: trial of all schedules, {} of work", tried.work)};
    case Verdict::some:
      report.fail(fmt::format("a schedule ends before the {} of {} ns", claim.key, claim.value));
      break;
    case Verdict::unknown:
      report.fail(
          fmt::format("{} is {} ns, but no statement proves it, and the trial of all schedules did not "
                      "within its limit of {} of work",
                      claim.key, claim.value, most_work));
      break;
    case Verdict::inapplicable:
      break;
  }
  return proved;
}

Bound bound_of(const Bounds& bounds, Objective objective, int micro_batches, Wide enough) {
  switch (objective) {
    case Objective::span:
      return bounds.span(micro_batches, enough);
    case Objective::latency:
      return bounds.latency();
    case Objective::makespan:
      break;
  }
  return bounds.makespan(micro_batches, enough);
}

Exhaustion try_all(const Bounds& bounds, Objective objective, int micro_batches, Nanoseconds below,
                   std::int64_t most_work) {
  switch (objective) {
    case Objective::makespan:
      return bounds.exhaust(micro_batches, below, most_work);
    case Objective::span:
      return bounds.exhaust_span(micro_batches, below, most_work);
    case Objective::latency:  // L2
      if (micro_batches == 1) return bounds.exhaust(1, below, most_work);
      break;
  }
  return {Verdict::inapplicable, 0};
}

}  // namespace ostinato::checker
