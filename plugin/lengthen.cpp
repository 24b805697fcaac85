#include "plugin/lengthen.h"

#include <string>

#include "search/files/error.h"
#include "search/plan/modes.h"
#include "search/schedule/stretch.h"

namespace ostinato {
namespace {

int at_least(int wanted, int unit) { return (wanted + unit - 1) / unit; }

/// One copy begins when the one before it ends; no rank waits for that where order alone counts.
std::vector<ScheduledBlock> copies(const Plan& plan, int count) {
  std::vector<ScheduledBlock> all;
  for (int k = 0; k < count; ++k) {
    for (const ScheduledBlock& s : plan.schedule)
      all.push_back({s.block, s.micro_batch + k * plan.micro_batches, s.start + k * plan.makespan});
  }
  return all;
}

}  // namespace

Plan lengthened(const Plan& plan, const Placement& placement, int micro_batches) {
  if (plan.micro_batches >= micro_batches) return plan;
  const std::int64_t steps = static_cast<std::int64_t>(placement.blocks.size()) * micro_batches;
  if (steps > kMostLengthenedSteps) {
    throw InputError("", 0,
                     std::to_string(micro_batches) + " micro-batches are " + std::to_string(steps) +
                         " steps; at most " + std::to_string(kMostLengthenedSteps) + " can be run at once");
  }
  Plan result = plan;
  result.lower_bound = {};
  result.optimal = {};
  result.by_exhaustion = {};
  result.capacity.reset();
  if (plan.steady_state.count == 0) {
    const int count = at_least(micro_batches, plan.micro_batches);
    result.schedule = copies(plan, count);
    result.micro_batches *= count;
    result.makespan *= count;
    return result;
  }
  const SteadyState& steady = plan.steady_state;
  const int more = at_least(micro_batches - plan.micro_batches, steady.unroll);
  const Placement taken = plan.modes ? with_modes(placement, plan.modes->taken) : placement;
  result.schedule = stretch(Instance(taken), plan.schedule, steady, more);
  result.micro_batches += more * steady.unroll;
  result.steady_state.count += more;
  result.makespan += more * steady.period;
  return result;
}

}  // namespace ostinato
