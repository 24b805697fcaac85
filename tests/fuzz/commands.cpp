// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/commands.h"

#include <stdexcept>

#include "plugin/lowering/lower.h"
#include "search/checker/checker.h"
#include "search/files/error.h"
#include "search/graph/simulate.h"
#include "search/graph/strategies.h"
#include "search/named/named.h"
#include "search/placement/placement_toml.h"
#include "search/plan/one_batch.h"
#include "search/plan/orders.h"
#include "search/plan/plan_json.h"
#include "search/search.h"
#include "search/show/show.h"
#include "search/simulate/simulate.h"
#include "search/unequal/unequal.h"
#include "search/unequal/with_sizes.h"
#include "tests/search/strange.h"

namespace ostinato::fuzz {
namespace {

void draw(const Plan& plan, const Placement& placement) {
  must(!show_text(plan, placement, {}).empty(), "nothing is drawn");
  if (plan.schedule.size() >= 2000) return;
  switch (plan.makespan % 8) {
    case 0:
      show_html(plan, placement);  // ten times as long as the others
      break;
    case 1:
    case 2:
    case 3:
      show_svg(plan, placement);
      break;
    default:
      show_perfetto(plan, placement);
  }
}

void replay(const Plan& planned, const Placement& placement) {
  const OneBatch all = as_one_batch(planned, placement);
  try {
    const Simulation s =
        simulate(all.placement, all.plan.micro_batches, all.plan.schedule, {.jitter_ppm = 1000});
    must(s.planned == planned.makespan, "the plan's own makespan is another one");
    explain(all.placement, critical_chain(all.placement, all.plan.micro_batches, all.plan.schedule));
  } catch (const InputError&) {  // times that vary leave int64
  }
}

/// Of no bounds, which are 0.
void claims_hold(const Plan& plan, const Placement& placement) {
  must(check_plan(plan, placement).ok(), "the checker refuses what the search claims");
  const std::string written = format_plan(plan, placement);
  must(format_plan(parse_plan(written, "plan.json", placement, ""), placement) == written,
       "a plan is not what was read when it is written and read again");
}

}  // namespace

void must(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

bool run_plan(const Plan& plan, const Placement& placement) {
  if (!check_schedule(plan, placement).ok()) return false;
  draw(plan, placement);
  replay(plan, placement);
  try {
    lower(plan, placement);
  } catch (const InputError&) {  // kinds that cannot be enforced
    return false;
  }
  return true;
}

void run_sizes(const Placement& placement, const std::vector<MicroBatch>& sizes) {
  if (sizes.size() > 6) return;
  Plan usual;
  usual.placement_name = placement.name;
  usual.micro_batches = static_cast<int>(sizes.size());
  usual.schedule = earliest_starts(placement, usual.micro_batches,
                                   named_schedule("1f1b", placement, usual.micro_batches).orders.value())
                       .value();
  try {
    const Plan other = with_sizes(usual, placement, sizes);
    must(check_schedule(other, placement).ok(), "the checker refuses a plan with other sizes");
    replay(other, placement);
  } catch (const InputError&) {  // a device lacks memory
  }
  try {
    claims_hold(search_unequal(placement, sizes, {.work = 5'000}), placement);
  } catch (const InfeasibleError&) {
  } catch (const UndecidedError&) {
  }
}

void run_graph(const graph::OperatorGraph& graph, const graph::GraphDevices& devices, std::size_t way) {
  if (graph.size() > 24 || devices.size() > 8) return;
  using graph::GraphSchedule;
  constexpr GraphSchedule kSchedules[] = {GraphSchedule::fifo, GraphSchedule::pct, GraphSchedule::msr};
  try {
    const graph::GraphCosts costs(graph, devices);
    const auto strategy = graph::kGraphStrategies[way % graph::kGraphStrategies.size()];
    const graph::GraphPartition made = graph::partition(costs, strategy);
    if (!made.reason.empty()) return;
    must(graph::check_assignment(costs, made.assignment).empty(), "an assignment breaks a rule");
    const graph::GraphTimeline timeline = graph::simulate(costs, made.assignment, kSchedules[way % 3]);
    must(graph::check_timeline(costs, made.assignment, timeline.start).empty(), "a timeline breaks a rule");
  } catch (const InfeasibleError&) {
  } catch (const InputError&) {  // all durations together leave int64
  }
}

bool run_search(std::string_view bytes) {
  test::Dice random(bytes);
  constexpr Objective kObjectives[] = {Objective::makespan, Objective::span, Objective::latency};
  SearchOptions options{.micro_batches = 1 + random.below(3), .time_limit_seconds = 0, .effort = 1};
  options.objective = kObjectives[random.below(3)];
  Placement drawn =
      random.chance(30) ? test::strange_pipeline(random) : test::strange(random, 1 + random.below(5));
  if (random.chance(10)) test::enlarge(drawn, options.micro_batches);
  if (random.chance(10)) test::lengthen(drawn, options.micro_batches);
  const std::string text = format_placement(drawn);
  const Placement placement = parse_placement(text, "p.toml").placement;
  must(format_placement(placement) == text, "a placement is not what was written");
  try {
    const Plan plan = search(placement, options);
    claims_hold(plan, placement);
    run_plan(plan, placement);
  } catch (const InfeasibleError&) {
    return false;
  } catch (const UndecidedError&) {
    return false;
  }
  return true;
}

}  // namespace ostinato::fuzz
