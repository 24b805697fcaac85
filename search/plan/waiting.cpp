// SPDX-License-Identifier: Apache-2.0
#include "search/plan/waiting.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace ostinato {
namespace {

/// [begin, end) in which all blocks of a device repeat; empty where there is no such time.
struct Window {
  Nanoseconds begin = std::numeric_limits<Nanoseconds>::max();
  Nanoseconds end = std::numeric_limits<Nanoseconds>::max();
};

/// A block repeats from its first micro-batch that does, for all repetends.
Window repeating(const SteadyState& steady, const std::vector<ScheduledBlock>& steps) {
  if (steady.count == 0) return {};
  Nanoseconds first = std::numeric_limits<Nanoseconds>::max(), last = 0;
  for (const ScheduledBlock& step : steps) {
    if (step.micro_batch != steady.first) continue;
    first = std::min(first, step.start);
    last = std::max(last, step.start);
  }
  return {last, std::max(last, first + steady.count * steady.period)};
}

/// How much of [begin, end) lies in the window's times.
Nanoseconds shared(Nanoseconds begin, Nanoseconds end, Nanoseconds from, Nanoseconds to) {
  return std::max<Nanoseconds>(0, std::min(end, to) - std::max(begin, from));
}

int busiest(const Placement& placement, const Plan& plan) {
  std::vector<Nanoseconds> work(placement.devices.size(), 0);
  for (const ScheduledBlock& step : plan.schedule)
    for (const int d : placement.blocks[step.block].devices) work[d] += placement.blocks[step.block].time;
  return static_cast<int>(std::max_element(work.begin(), work.end()) - work.begin());
}

}  // namespace

Waiting waiting_of_busiest(const Placement& placement, const Plan& plan) {
  Waiting waits{.device = busiest(placement, plan)};
  std::vector<ScheduledBlock> steps;
  for (const ScheduledBlock& step : plan.schedule) {
    const std::vector<int>& devices = placement.blocks[step.block].devices;
    if (std::ranges::find(devices, waits.device) != devices.end()) steps.push_back(step);
  }
  std::ranges::sort(steps, {}, [&](const ScheduledBlock& step) {
    return std::pair(step.start, placement.blocks[step.block].time);
  });
  const Window window = repeating(plan.steady_state, steps);
  Nanoseconds now = 0;
  for (const ScheduledBlock& step : steps) {
    const Nanoseconds waited = step.start - now;
    if (&step == &steps.front()) {
      waits.before_first = waited;
    } else {
      const Nanoseconds inside = shared(now, step.start, window.begin, window.end);
      const Nanoseconds before = plan.steady_state.count == 0 ? 0 : shared(now, step.start, 0, window.begin);
      waits.repetends += inside;
      waits.warm_up += before;
      waits.cool_down += waited - inside - before;
    }
    waits.work += placement.blocks[step.block].time;
    now = step.start + placement.blocks[step.block].time;
  }
  waits.after_last = plan.makespan - now;
  return waits;
}

}  // namespace ostinato
