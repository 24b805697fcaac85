// SPDX-License-Identifier: Apache-2.0
#include "search/checker/checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "search/checker/prove.h"
#include "search/checker/schedule.h"
#include "search/checker/unequal.h"
#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/plan/one_batch.h"

namespace ostinato {
namespace checker {
namespace {

bool same_names(const Plan& plan, const Placement& placement, Report& report) {
  if (plan.placement_name == placement.name) return true;
  report.fail(
      fmt::format("the plan is for placement '{}', not for '{}'", plan.placement_name, placement.name));
  return false;
}

/// The definition in plan.h: start(b, i + unroll) == start(b, i) + period. What looks at the steady state
/// afterwards may do so only where nothing was reported here.
void check_steady_state(const Timetable& table, Report& report) {
  const SteadyState& steady = table.plan().steady_state;
  if (steady.unroll < 1 || steady.first < 0 || steady.count < 0 || steady.period < 0) {
    return report.fail("steady_state has a negative figure, or an unroll below 1");
  }
  if (steady.count == 0) {
    if (steady.period == 0) return report.pass("the plan claims no repeating part");
    return report.fail(fmt::format("steady_state has no repetends, but a period of {} ns", steady.period));
  }
  const Wide end = steady.first + static_cast<Wide>(steady.count) * steady.unroll;
  if (end > table.micro_batches()) {
    return report.fail(fmt::format("steady_state covers micro-batches {} to {}, but the plan has {}",
                                   steady.first, to_text(end - 1), table.micro_batches()));
  }
  const std::size_t before = report.failures();
  const int last = static_cast<int>(end) - steady.unroll;
  for (int i = steady.first; i < last; ++i) {
    for (int b = 0; b < table.blocks(); ++b) {
      const Wide wanted = static_cast<Wide>(table.start(b, i)) + steady.period;
      const Nanoseconds actual = table.start(b, i + steady.unroll);
      if (actual == wanted) continue;
      report.fail(
          fmt::format("{} starts at {} ns; by steady_state, a period of {} ns after micro-batch {}, it "
                      "should start at {} ns",
                      table.step_name(b, i + steady.unroll), actual, steady.period, i, to_text(wanted)));
    }
  }
  if (report.failures() > before) return;
  report.pass(fmt::format("{} of {}, one every {} ns", counted(steady.count, "repetend"),
                          counted(steady.unroll, "micro-batch"), steady.period));
}

/// docs/bounds.md, P: from some instant on, every block is in its repeating part for one whole period.
bool repetends_overlap(const Timetable& table) {
  const SteadyState& steady = table.plan().steady_state;
  if (steady.count < 2) return false;
  const int to_last = (steady.count - 1) * steady.unroll;
  Nanoseconds latest = 0, earliest = std::numeric_limits<Nanoseconds>::max();
  for (int i = steady.first; i < steady.first + steady.unroll; ++i) {
    for (int b = 0; b < table.blocks(); ++b) {
      latest = std::max(latest, table.start(b, i));
      earliest = std::min(earliest, table.start(b, i + to_last));
    }
  }
  return latest <= earliest;
}

void judge_makespan(const Plan& plan, const Bound& proved, Report& report) {
  if (proved.value < plan.lower_bound.makespan) {
    report.fail(fmt::format("lower_bound.makespan is {} ns, but only {} ns are proved ({})",
                            plan.lower_bound.makespan, to_text(proved.value), proved.why));
  } else {
    report.pass(fmt::format("no schedule ends before {} ns ({})", to_text(proved.value), proved.why));
  }
  if (plan.optimal.makespan && plan.makespan != plan.lower_bound.makespan) {
    report.fail(fmt::format("optimal.makespan is true, but the makespan is {} ns and its lower bound {} ns",
                            plan.makespan, plan.lower_bound.makespan));
  } else if (plan.optimal.makespan && proved.value >= plan.makespan) {
    report.pass(fmt::format("the makespan of {} ns is optimal", plan.makespan));
  }
}

void check_makespan_claims(const Timetable& table, const Bounds& bounds, std::int64_t most_work,
                           Report& report) {
  const Plan& plan = table.plan();
  const Claim claim = {"lower_bound.makespan", Objective::makespan, table.micro_batches(),
                       plan.lower_bound.makespan, plan.makespan};
  const Bound proved = prove(bounds, claim, most_work, report);
  judge_makespan(plan, proved, report);
}

/// The span or the latency, where that was minimised.
void check_objective_claims(const Timetable& table, const Bounds& bounds, std::int64_t most_work,
                            Report& report) {
  const Plan& plan = table.plan();
  const Nanoseconds claim = plan.lower_bound.objective;
  if (plan.objective == Objective::makespan) {
    if (claim != 0 || plan.optimal.objective)
      report.fail("lower_bound and optimal name the span or the latency, which was not the objective");
    return;
  }
  if (claim == 0 && !plan.optimal.objective) return;
  const bool span = plan.objective == Objective::span;
  const char* name = to_string(plan.objective);
  const Nanoseconds value = span ? plan.span : latency_of(table);
  const Bound proved = prove(
      bounds, {fmt::format("lower_bound.{}", name), plan.objective, table.micro_batches(), claim, value},
      most_work, report);
  if (proved.value < claim) {
    report.fail(fmt::format("lower_bound.{} is {} ns, but only {} ns are proved ({})", name, claim,
                            to_text(proved.value), proved.why));
  } else {
    report.pass(
        fmt::format("no schedule has a {} below {} ns ({})", name, to_text(proved.value), proved.why));
  }
  if (plan.optimal.objective && value != claim) {
    report.fail(fmt::format("optimal.{} is true, but the {} is {} ns and its lower bound {} ns", name, name,
                            value, claim));
  } else if (plan.optimal.objective && proved.value >= claim) {
    report.pass(fmt::format("the {} of {} ns is optimal", name, value));
  }
}

void check_period_claims(const Timetable& table, const Bounds& bounds, Report& report) {
  const Plan& plan = table.plan();
  const Bound proved = bounds.period(std::max(1, plan.steady_state.unroll));
  if (proved.value < plan.lower_bound.period) {
    report.fail(fmt::format("lower_bound.period is {} ns, but only {} ns are proved ({})",
                            plan.lower_bound.period, to_text(proved.value), proved.why));
  } else {
    report.pass(fmt::format("{} cannot repeat faster than every {} ns ({})",
                            counted(plan.steady_state.unroll, "micro-batch"), to_text(proved.value),
                            proved.why));
  }
  if (plan.steady_state.count > 0 && plan.steady_state.period < plan.lower_bound.period) {
    report.fail(fmt::format(
        "steady_state.period is {} ns, below its lower bound of {} ns: these repetends cannot repeat",
        plan.steady_state.period, plan.lower_bound.period));
  }
  if (!plan.optimal.period) return;
  if (plan.steady_state.period != plan.lower_bound.period) {
    report.fail(fmt::format("optimal.period is true, but the period is {} ns and its lower bound {} ns",
                            plan.steady_state.period, plan.lower_bound.period));
  } else if (!repetends_overlap(table)) {
    report.fail("optimal.period is true, but at no time do all blocks repeat");
  } else if (proved.value >= plan.steady_state.period) {
    report.pass(fmt::format("the period of {} ns is optimal", plan.steady_state.period));
  }
}

/// docs/bounds.md, C1: the bound within less memory than the placement has.
void check_capacity_claim(const Plan& plan, Placement placement, std::int64_t most_work, Report& report) {
  const auto [memory, claim, by_exhaustion] = *plan.capacity;
  for (Device& device : placement.devices) {
    if (device.lane_of < 0) device.memory = std::min(device.memory, memory);
  }
  const Nanoseconds known = plan.objective == Objective::span ? plan.span : plan.makespan;
  const Bounds bounds(placement);
  const int n = plan.micro_batches;
  const Bound proved =
      prove(bounds, {"capacity.lower_bound", plan.objective, n, claim, known}, most_work, report);
  const std::string what = plan.objective == Objective::makespan
                               ? "ends before"
                               : fmt::format("has a {} below", to_string(plan.objective));
  const std::string within = fmt::format("within {} bytes on each device {}", memory, what);
  if (proved.value < claim) {
    report.fail(fmt::format("capacity.lower_bound is {} ns, but only {} ns are proved ({})", claim,
                            to_text(proved.value), proved.why));
  } else {
    report.pass(fmt::format("no schedule {} {} ns ({})", within, to_text(proved.value), proved.why));
  }
}

void check_claims(const Timetable& table, bool repeats, std::int64_t most_work, Report& report) {
  const Bounds bounds(table.placement());
  check_makespan_claims(table, bounds, most_work, report);
  check_objective_claims(table, bounds, most_work, report);
  if (repeats) check_period_claims(table, bounds, report);
  if (table.plan().capacity) check_capacity_claim(table.plan(), table.placement(), most_work, report);
}

/// Of a plan with sizes: they go with the placement, and what it may not claim it does not.
bool sizes_hold(const Plan& plan, const Placement& placement, Report& report) {
  if (plan.sizes.empty()) return true;
  const std::size_t before = report.failures();
  try {
    check_sizes(placement, plan.sizes);
  } catch (const InputError& error) {
    report.fail(error.what());
  }
  if (static_cast<int>(plan.sizes.size()) != plan.micro_batches)
    report.fail(fmt::format("the plan has {}, but {}", counted(plan.micro_batches, "micro-batch"),
                            counted(static_cast<std::int64_t>(plan.sizes.size()), "size")));
  if (plan.capacity || plan.any_placement || plan.objective != Objective::makespan ||
      plan.steady_state.count != 0 || plan.lower_bound.period != 0 || plan.optimal.period)
    report.fail(
        "a plan with sizes must not have capacity, any_placement, a steady state or an objective "
        "other than the makespan");
  for (const ScheduledBlock& step : plan.schedule)
    if (step.block < 0 || step.block >= static_cast<int>(placement.blocks.size()) || step.micro_batch < 0 ||
        step.micro_batch >= plan.micro_batches)
      report.fail(fmt::format("a step names block {} of micro-batch {}; the plan has {} and {}", step.block,
                              step.micro_batch, counted(placement.blocks.size(), "block"),
                              counted(plan.micro_batches, "micro-batch")));
  return report.failures() == before;
}

/// docs/bounds.md, U, of a plan with sizes; what they do not prove may be shown by trying all schedules.
void check_unequal_claims(const Timetable& table, const Placement& placement,
                          const std::vector<MicroBatch>& sizes, std::int64_t most_work, Report& report) {
  const Plan& plan = table.plan();
  Bound proved = UnequalBounds(placement, sizes).makespan();
  if (proved.value < plan.lower_bound.makespan && plan.by_exhaustion.makespan) {
    const Bounds bounds(table.placement());
    const Claim claim = {"lower_bound.makespan", Objective::makespan, 1, plan.lower_bound.makespan,
                         plan.makespan};
    proved = prove(bounds, claim, most_work, report);
  }
  judge_makespan(plan, proved, report);
}

/// What the plan does, and if that can be told, `claims(table, repeats, report)`: whether the repeating part
/// is what the plan says. Unequal micro-batches are one micro-batch of a larger placement.
template <typename Claims>
CheckResult check(const Plan& planned, const Placement& of_plan, Claims claims) {
  Report report;
  same_names(planned, of_plan, report);
  if (!sizes_hold(planned, of_plan, report)) return report.take();
  const auto [placement, plan] = as_one_batch(planned, of_plan);
  const int of_blocks = planned.sizes.empty() ? 0 : static_cast<int>(of_plan.blocks.size());
  const Timetable table(plan, placement, report, of_blocks);
  if (!table.complete()) return report.take();
  check_schedule(table, report);
  check_listing(planned, of_plan, report);
  check_figures(table, report);
  const std::size_t before = report.failures();
  check_steady_state(table, report);
  claims(table, report.failures() == before && !report.full(), report);
  return report.take();
}

}  // namespace
}  // namespace checker

CheckResult check_plan(const Plan& plan, const Placement& placement, std::int64_t most_work) {
  return checker::check(plan, placement, [&](const checker::Timetable& table, bool repeats, auto& report) {
    if (!plan.sizes.empty())
      return checker::check_unequal_claims(table, placement, plan.sizes, most_work, report);
    checker::check_claims(table, repeats, most_work, report);
  });
}

CheckResult check_schedule(const Plan& plan, const Placement& placement) {
  return checker::check(plan, placement, [](const auto&...) {});
}

void refuse_unless_it_runs(const Plan& plan, const Placement& placement, const std::string& plan_file,
                           const std::string& placement_file) {
  const CheckResult check = check_schedule(plan, placement);
  if (check.ok()) return;
  std::string message = "the plan is not correct for " + placement_file + ":";
  for (const std::string& failure : check.failures) message += "\n  " + failure;
  throw InputError(plan_file, 0, message);
}

}  // namespace ostinato
