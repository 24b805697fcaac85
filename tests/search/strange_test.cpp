// The search against an enumeration of all schedules on placements that no shape makes (strange.h). What it
// says (optimal, infeasible, a bound) is true, and the checker shows it again.
// OSTINATO_STRANGE=20000 draws so many of each kind.

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "search/files/error.h"
#include "search/mode_search.h"
#include "search/pareto.h"
#include "search/placement/placement_toml.h"
#include "search/plan/modes.h"
#include "search/plan/orders.h"
#include "search/plan/plan_json.h"
#include "search/simulate/simulate.h"
#include "tests/search/all_spans.h"
#include "tests/search/all_starts.h"
#include "tests/search/checked.h"
#include "tests/search/strange.h"

namespace ostinato {
namespace {

using test::Dice;
using test::strange;

int rounds(int usual) {
  const char* wanted = std::getenv("OSTINATO_STRANGE");
  return wanted == nullptr ? usual : std::atoi(wanted);
}

/// What the enumerations can do, by micro-batches.
constexpr int kMostBlocks[] = {0, 5, 4, 2};

bool memory_in_no_time(const Placement& p) {
  const auto changes = [](const Block& b) { return b.time == 0 && b.memory != 0; };
  return std::any_of(p.blocks.begin(), p.blocks.end(), changes);
}

/// The least value of the objective, nullopt where nothing fits; no answer where it would take too long.
struct Answer {
  bool known = true;
  std::optional<Nanoseconds> least;
};

Answer enumerate(const Placement& p, int n, Objective objective) {
  for (const Device& device : p.devices) {
    if (device.static_memory > device.memory) return {};
  }
  if (memory_in_no_time(p)) {
    if (objective == Objective::span || test::AllStarts(p, n, objective).size() > 2e6) return {false, {}};
    return {true, test::AllStarts(p, n, objective).least()};
  }
  if (objective == Objective::makespan) return {true, test::AllOrders(p, n).least()};
  return {true, test::AllSpans(p, n, objective).least()};
}

struct Counts {
  int plans = 0, optimal = 0, infeasible = 0, undecided = 0;
};

Plan through_a_file(const Plan& plan, const Placement& p) {
  return parse_plan(format_plan(plan, plan.modes ? with_modes(p, plan.modes->taken) : p), "plan.json", p, "");
}

void expect_true(const Plan& plan, const Placement& p, const Answer& answer, Counts& counts) {
  test::expect_holds(through_a_file(plan, p), p);
  simulate(p, plan.micro_batches, plan.schedule, {.jitter_ppm = 1000, .runs = 1});
  const bool makespan = plan.objective == Objective::makespan;
  const Nanoseconds value = objective_value(plan.objective, p, plan.schedule);
  const bool optimal = makespan ? plan.optimal.makespan : plan.optimal.objective;
  ++counts.plans;
  counts.optimal += optimal;
  if (!answer.known) return;
  ASSERT_TRUE(answer.least) << "a plan where nothing fits";
  EXPECT_GE(value, *answer.least);
  EXPECT_LE(makespan ? plan.lower_bound.makespan : plan.lower_bound.objective, *answer.least);
  EXPECT_TRUE(!optimal || value == *answer.least) << value << " is not " << *answer.least;
}

void compare(const Placement& p, int n, Objective objective, Counts& counts) {
  const Answer answer = enumerate(p, n, objective);
  try {
    expect_true(
        search(p, {.micro_batches = n, .objective = objective, .time_limit_seconds = 0, .effort = 20}), p,
        answer, counts);
  } catch (const InfeasibleError& error) {
    ++counts.infeasible;
    EXPECT_FALSE(answer.known && answer.least) << error.what();
  } catch (const UndecidedError&) {
    ++counts.undecided;
  }
}

/// The placement as a user would have to write it, for the message of a failure.
std::string as_file(const Placement& p) { return format_placement(p); }

void draw(unsigned seed, int usual, Objective objective) {
  Dice random(seed);
  Counts counts;
  for (int i = 0; i < rounds(usual) && !testing::Test::HasFailure(); ++i) {
    const int n = 1 + random.below(3);
    const Placement p = strange(random, 1 + random.below(kMostBlocks[n]));
    SCOPED_TRACE(fmt::format("round {}, {} micro-batches of\n{}", i, n, as_file(p)));
    compare(p, n, objective, counts);
  }
  EXPECT_GT(counts.optimal, counts.plans / 2);
  EXPECT_GT(counts.infeasible, 0);
  EXPECT_LT(counts.undecided * 20, rounds(usual)) << "undecided";
  if (std::getenv("OSTINATO_STRANGE") != nullptr)
    fmt::print("{} plans, {} optimal, {} infeasible, {} undecided\n", counts.plans, counts.optimal,
               counts.infeasible, counts.undecided);
}

TEST(Strange, WhatIsSaidOfTheMakespanIsTrue) { draw(1, 400, Objective::makespan); }

TEST(Strange, WhatIsSaidOfTheLatencyIsTrue) { draw(2, 300, Objective::latency); }

TEST(Strange, WhatIsSaidOfTheSpanIsTrue) { draw(3, 200, Objective::span); }

/// The least over all sets of modes.
Answer enumerate_modes(const Placement& p, int n, Objective objective) {
  Answer best;
  Assignment assignment(p.choices.size(), 0);
  for (std::size_t c = 0; c < assignment.size() || assignment.empty();) {
    const Answer one = enumerate(with_modes(p, assignment), n, objective);
    best.known = best.known && one.known;
    if (one.least && (!best.least || *one.least < *best.least)) best.least = one.least;
    for (c = 0; c < assignment.size(); ++c) {
      if (++assignment[c] < static_cast<int>(p.choices[c].modes.size())) break;
      assignment[c] = 0;
    }
    if (c == assignment.size()) break;
  }
  return best;
}

TEST(Strange, WhatIsSaidOfChoicesIsTrue) {
  Dice random(4);
  int plans = 0, not_as_written = 0;
  for (int i = 0; i < rounds(150) && !testing::Test::HasFailure(); ++i) {
    const int n = 1 + random.below(2);
    Placement p = strange(random, 2 + random.below(kMostBlocks[n] - 1));
    test::add_choices(random, p);
    if (p.choices.empty()) continue;
    SCOPED_TRACE(fmt::format("round {}, {} micro-batches of\n{}", i, n, as_file(p)));
    const Objective objective = random.chance(70) ? Objective::makespan : Objective::latency;
    const Answer answer = enumerate_modes(p, n, objective);
    const SearchOptions options{
        .micro_batches = n, .objective = objective, .time_limit_seconds = 0, .effort = 10};
    try {
      const Plan plan = search_modes(p, options);
      test::expect_holds(through_a_file(plan, p), p);
      ++plans;
      not_as_written += !plan.modes->taken.empty();
      if (answer.known) {
        ASSERT_TRUE(answer.least) << "a plan where nothing fits";
        EXPECT_GE(objective_value(objective, with_modes(p, plan.modes->taken), plan.schedule), *answer.least);
        EXPECT_TRUE(objective != Objective::makespan || plan.modes->lower_bound <= *answer.least);
      }
      if (!random.chance(30)) continue;
      for (const Plan& point : pareto_memory(p, options, 4, true).plans)
        test::expect_holds(through_a_file(point, p), p);
    } catch (const InfeasibleError& error) {
      EXPECT_FALSE(answer.known && answer.least) << error.what();
    } catch (const UndecidedError&) {
    }
  }
  EXPECT_GT(plans, rounds(150) / 4);
  EXPECT_GT(not_as_written, rounds(150) / 40);
}

}  // namespace
}  // namespace ostinato
