// SPDX-License-Identifier: Apache-2.0
#include "plugin/lowering/lengthen.h"

#include <string>

#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/plan/orders.h"
#include "search/repetend/repetend.h"
#include "search/schedule/stretch.h"

namespace ostinato {
namespace {

int at_least(int wanted, int unit) { return (wanted + unit - 1) / unit; }

void stretch_steady(Plan& plan, const Instance& in, int micro_batches) {
  SteadyState& steady = plan.steady_state;
  const int more = at_least(micro_batches - plan.micro_batches, steady.unroll);
  plan.schedule = stretch(in, plan.schedule, steady, more);
  plan.micro_batches += more * steady.unroll;
  plan.makespan += more * steady.period;
  steady.count += more;
}

void repeat_least(Plan& plan, const Instance& in, int micro_batches) {
  const Repetend repetend = find_repetend(in, Bounds(in), 1, {});
  if (repetend.period == 0) throw InputError("", 0, "no schedule that repeats was found for this placement");
  plan.schedule.clear();
  for (int m = 0; m < micro_batches; ++m) {
    for (int b = 0; b < in.blocks(); ++b)
      plan.schedule.push_back({b, m, repetend.start[b] + m * repetend.period});
  }
  sort_schedule(in.placement(), plan.schedule);
  plan.micro_batches = micro_batches;
  plan.makespan = makespan_of(in.placement(), plan.schedule);
}

}  // namespace

Plan lengthened(const Plan& plan, const Placement& placement, int micro_batches) {
  if (plan.micro_batches >= micro_batches) return plan;
  const std::int64_t steps = static_cast<std::int64_t>(placement.blocks.size()) * micro_batches;
  if (steps > kMostLengthenedSteps) {
    throw InputError("", 0,
                     counted(micro_batches, "micro-batch") + " are " + counted(steps, "step") + "; at most " +
                         std::to_string(kMostLengthenedSteps) + " can be run at once");
  }
  if (!plan.sizes.empty())
    throw InputError("", 0,
                     "the plan is for " + std::to_string(plan.micro_batches) +
                         " micro-batches of different sizes, and cannot be made longer: search one for " +
                         std::to_string(micro_batches));
  Plan result = plan;
  result.lower_bound = {};
  result.optimal = {};
  result.by_exhaustion = {};
  result.capacity.reset();
  const Instance in(placement);
  if (plan.steady_state.count > 0) {
    stretch_steady(result, in, micro_batches);
  } else {
    repeat_least(result, in, micro_batches);
  }
  return result;
}

}  // namespace ostinato
