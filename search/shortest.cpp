// SPDX-License-Identifier: Apache-2.0
#include "search/shortest.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "search/bounds/bounds.h"
#include "search/files/error.h"
#include "search/named/named.h"
#include "search/placement/placement_check.h"
#include "search/plan/proved.h"
#include "search/portfolio/portfolio.h"
#include "search/schedule/steady.h"

namespace ostinato {
namespace {

void check(const Placement& placement, const SearchOptions& options) {
  if (options.micro_batches < 1) throw InputError("", 0, "there must be at least one micro-batch");
  const auto& names = named_schedules();
  if (options.method != "auto" && std::find(names.begin(), names.end(), options.method) == names.end()) {
    throw InputError(
        "", 0,
        fmt::format("unknown method \"{}\"; known are auto, {}", options.method, fmt::join(names, ", ")));
  }
  if (placement.blocks.empty() || topological_order(placement).empty()) {
    throw InputError("", 0, "the blocks of the placement are not an acyclic graph");
  }
  check_totals(placement, options.micro_batches, "");
}

/// Of one micro-batch the latency is the makespan, for which there are more techniques and more bounds.
SearchOptions as_searched(SearchOptions options) {
  if (options.objective == Objective::latency && options.micro_batches == 1)
    options.objective = Objective::makespan;
  return options;
}

Plan plan_of(const Portfolio& portfolio, const Instance& in, const Bounds& bounds,
             const SearchOptions& options) {
  const Incumbent& best = portfolio.best();
  Plan plan;
  plan.placement_name = in.placement().name;
  plan.micro_batches = options.micro_batches;
  plan.objective = options.objective;
  plan.schedule = best.schedule();
  plan.makespan = best.score().makespan;
  plan.span = best.score().span;
  plan.peak_memory = best.peaks();
  plan.lower_bound.makespan = portfolio.claims().makespan;
  (options.objective == Objective::span ? plan.by_exhaustion.span : plan.by_exhaustion.makespan) =
      portfolio.claims().by_exhaustion;
  plan.optimal.makespan = plan.lower_bound.makespan == plan.makespan;
  plan.steady_state = find_steady_state(in, options.micro_batches, plan.schedule);
  if (plan.steady_state.count > 0) {
    plan.lower_bound.period = bounds.period(plan.steady_state.unroll);
    plan.optimal.period = plan.lower_bound.period == plan.steady_state.period;
  }
  if (options.objective != Objective::makespan) {
    plan.lower_bound.objective = portfolio.claims().objective;
    plan.optimal.objective = plan.lower_bound.objective == best.score().objective;
  }
  plan.search = {best.method(), options.seed, portfolio.cut() && !is_optimal(plan), portfolio.untried()};
  return plan;
}

}  // namespace

Plan shortest_plan(const Placement& placement, const SearchOptions& options) {
  const auto began = Hunt::Clock::now();
  check(placement, options);
  const Instance in(placement);
  const Bounds bounds(in);
  const SearchOptions searched = as_searched(options);
  Portfolio portfolio(in, bounds, searched, began);
  options.method == "auto" ? portfolio.run() : portfolio.run_named();
  portfolio.certify();
  if (portfolio.best().empty()) {
    throw UndecidedError(options.below > 0 ? "no order was found that is shorter than the known one"
                                           : "no order was found that fits the memory, but one may exist");
  }
  return plan_of(portfolio, in, bounds, options);
}

}  // namespace ostinato
