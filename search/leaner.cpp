// SPDX-License-Identifier: Apache-2.0
#include "search/leaner.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include "search/bounds/bounds.h"
#include "search/files/error.h"
#include "search/placement/capacity.h"
#include "search/plan/memory.h"
#include "search/plan/orders.h"
#include "search/plan/proved.h"
#include "search/shortest.h"

namespace ostinato {
namespace {

/// Percent of a search's usual work, and blocks times micro-batches beyond which it is not done.
constexpr int kEffort = 5;
constexpr std::size_t kMostSteps = 200'000;

__int128 total(const Plan& plan) {
  return std::accumulate(plan.peak_memory.begin(), plan.peak_memory.end(), __int128{0});
}

class Leaner {
 public:
  Leaner(const Placement& placement, const SearchOptions& options, Plan plan)
      : placement_(placement), options_(options), plan_(std::move(plan)) {}

  Plan run() {
    Bytes below = 0;  // in which nothing so short was found
    for (const Device& device : placement_.devices) below = std::max(below, device.static_memory);
    for (int in_vain = 0; in_vain < kLeanerInVain && !stopped() && most_memory(plan_) - below > 1;) {
      const Bytes capacity = below + (most_memory(plan_) - below) / 2;
      std::optional<Plan> found = within(capacity);
      if (found) {
        claim_as(placement_, plan_, *found);
        plan_ = std::move(*found);
        in_vain = 0;
      } else {
        below = capacity;
        ++in_vain;
      }
    }
    return std::move(plan_);
  }

 private:
  std::optional<Plan> within(Bytes capacity) const {
    SearchOptions options = left_after(options_, Clock::now() - began_);
    options.effort = std::max(1, options_.effort * kEffort / 100);
    options.below = value(plan_) + 1;
    options.progress = {};
    options.contributions = nullptr;
    try {
      Plan found = shortest_plan(within_capacity(placement_, capacity), options);
      // `below` is a hint, and as short a latency may come with a longer makespan.
      const bool as_short = value(found) <= value(plan_) && found.makespan <= plan_.makespan;
      if (as_short && total(found) < total(plan_)) return found;
    } catch (const InfeasibleError&) {
    } catch (const UndecidedError&) {
    }
    return std::nullopt;
  }

  Nanoseconds value(const Plan& plan) const {
    return objective_value(plan.objective, placement_, plan.schedule);
  }

  bool stopped() const { return is_over(options_, Clock::now() - began_); }

  using Clock = std::chrono::steady_clock;

  const Placement& placement_;
  const SearchOptions& options_;
  const Clock::time_point began_ = Clock::now();
  Plan plan_;
};

}  // namespace

void claim_as(const Placement& placement, const Plan& first, Plan& found) {
  const bool repeats = found.steady_state.count > 0;
  const Instance in(placement);
  found.lower_bound = first.lower_bound;
  found.lower_bound.period = repeats ? Bounds(in).period(found.steady_state.unroll) : Nanoseconds{0};
  found.by_exhaustion = first.by_exhaustion;
  found.optimal.makespan = found.lower_bound.makespan == found.makespan;
  found.optimal.period = repeats && found.lower_bound.period == found.steady_state.period;
  found.optimal.objective =
      found.objective != Objective::makespan &&
      found.lower_bound.objective == objective_value(found.objective, placement, found.schedule);
  found.search.cut_by_limit = first.search.cut_by_limit && !is_optimal(found);
}

Plan in_less_memory(const Placement& placement, const SearchOptions& options, Plan plan) {
  const std::size_t steps = placement.blocks.size() * static_cast<std::size_t>(plan.micro_batches);
  if (plan.search.cut_by_limit || steps > kMostSteps || options.method != "auto") return plan;
  return Leaner(placement, options, std::move(plan)).run();
}

}  // namespace ostinato
