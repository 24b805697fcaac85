// SPDX-License-Identifier: Apache-2.0
#include "search/shortest.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "search/bounds/bounds.h"
#include "search/files/error.h"
#include "search/named/named.h"
#include "search/placement/placement_check.h"
#include "search/plan/proved.h"
#include "search/portfolio/portfolio.h"
#include "search/schedule/steady.h"

namespace ostinato {
namespace {

/// Percent.
constexpr int kUsualEffort = 100, kMostEffort = 1'000'000;

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

/// One search, which ends no worse than `known`. Absent: it found nothing.
std::optional<Plan> searched(const Instance& in, const Bounds& bounds, SearchOptions options,
                             const std::optional<Plan>& known, Hunt::Clock::time_point began) {
  if (known) {
    const Nanoseconds value = objective_value(known->objective, in.placement(), known->schedule);
    options.below = options.below > 0 ? std::min(options.below, value + 1) : value + 1;
    if (options.progress) {
      options.progress = [value, report = options.progress](Progress progress) {
        progress.best = std::min(progress.best, value);
        report(progress);
      };
    }
  }
  const SearchOptions asked = as_searched(options);
  Portfolio portfolio(in, bounds, asked, began);
  if (known) portfolio.claim(bound_of(*known));
  options.method == "auto" ? portfolio.run() : portfolio.run_named();
  if (known) portfolio.offer(*known);
  portfolio.certify();
  if (portfolio.best().empty()) return std::nullopt;
  Plan plan = plan_of(portfolio, in, bounds, options);
  if (known) plan.search.untried = known->search.untried;
  return plan;
}

}  // namespace

Plan shortest_plan(const Placement& placement, const SearchOptions& options) {
  const auto began = Hunt::Clock::now();
  check(placement, options);
  const Instance in(placement);
  const Bounds bounds(in);
  SearchOptions now = options;
  now.effort = std::min(options.effort, kUsualEffort);
  std::optional<Plan> best = searched(in, bounds, now, std::nullopt, began);
  while (now.effort < options.effort && options.method == "auto" && !(best && is_optimal(*best)) &&
         !is_over(options, Hunt::Clock::now() - began)) {
    now.effort = std::min(options.effort, greater_effort(now.effort));
    if (std::optional<Plan> found = searched(in, bounds, now, best, began)) best = std::move(found);
  }
  if (!best) {
    throw UndecidedError(options.below > 0 ? "no order was found that is shorter than the known one"
                                           : "no order was found that fits the memory, but one may exist");
  }
  return *std::move(best);
}

int greater_effort(int effort) { return std::min(kMostEffort, 4 * std::max(kUsualEffort, effort)); }

}  // namespace ostinato
