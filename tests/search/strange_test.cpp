// SPDX-License-Identifier: Apache-2.0
// The search against an enumeration of all schedules on placements that no shape makes (strange.h). What it
// says (optimal, infeasible, a bound) is true, and the checker shows it again.
// OSTINATO_STRANGE=20000 draws so many of each kind.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <optional>

#include "search/files/error.h"
#include "search/pareto.h"
#include "search/placement/capacity.h"
#include "search/placement/placement_toml.h"
#include "search/plan/orders.h"
#include "search/plan/plan_json.h"
#include "search/repetend/repeating_part.h"
#include "search/search.h"
#include "search/simulate/simulate.h"
#include "tests/search/all_repetends.h"
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
  return wanted == nullptr ? usual : std::stoi(wanted);
}

/// In long runs only.
template <typename... Args>
void print(fmt::format_string<Args...> text, Args&&... args) {
  if (std::getenv("OSTINATO_STRANGE") != nullptr) fmt::print(text, std::forward<Args>(args)...);
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
  return parse_plan(format_plan(plan, p), "plan.json", p, "");
}

/// Of the objective alone.
void expect_claims(const Plan& plan, const Placement& p, const Answer& answer) {
  ASSERT_TRUE(answer.least) << "a plan where nothing fits";
  const bool makespan = plan.objective == Objective::makespan;
  const Nanoseconds value = objective_value(plan.objective, p, plan.schedule);
  const bool optimal = makespan ? plan.optimal.makespan : plan.optimal.objective;
  EXPECT_GE(value, *answer.least);
  EXPECT_LE(makespan ? plan.lower_bound.makespan : plan.lower_bound.objective, *answer.least);
  EXPECT_TRUE(!optimal || value == *answer.least) << value << " is not " << *answer.least;
}

void expect_true(const Plan& plan, const Placement& p, const Answer& answer, Counts& counts) {
  test::expect_holds(through_a_file(plan, p), p);
  simulate(p, plan.micro_batches, plan.schedule, {.jitter_ppm = 1000, .runs = 1});
  const bool makespan = plan.objective == Objective::makespan;
  ++counts.plans;
  counts.optimal += makespan ? plan.optimal.makespan : plan.optimal.objective;
  if (answer.known) expect_claims(plan, p, answer);
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
    Placement p = strange(random, 1 + random.below(kMostBlocks[n]));
    if (random.chance(10)) test::enlarge(p, n);
    if (random.chance(10)) test::lengthen(p, n);
    SCOPED_TRACE(fmt::format("round {}, {} micro-batches of\n{}", i, n, as_file(p)));
    compare(p, n, objective, counts);
  }
  EXPECT_GT(counts.optimal, counts.plans / 2);
  EXPECT_GT(counts.infeasible, 0);
  EXPECT_LT(counts.undecided * 20, rounds(usual)) << "undecided";
  print("{} plans, {} optimal, {} infeasible, {} undecided\n", counts.plans, counts.optimal,
        counts.infeasible, counts.undecided);
}

TEST(Strange, WhatIsSaidOfTheMakespanIsTrue) { draw(1, 400, Objective::makespan); }

TEST(Strange, WhatIsSaidOfTheLatencyIsTrue) { draw(2, 300, Objective::latency); }

TEST(Strange, WhatIsSaidOfTheSpanIsTrue) { draw(3, 200, Objective::span); }

Placement of_either_kind(Dice& random, int blocks, int n) {
  Placement p = n == 2 && random.chance(70) ? test::strange_pipeline(random) : strange(random, blocks);
  if (random.chance(10)) test::enlarge(p, n);
  if (random.chance(10)) test::lengthen(p, n);
  return p;
}

Objective any_objective(Dice& random) {
  constexpr Objective all[] = {Objective::makespan, Objective::latency, Objective::span};
  return all[random.below(3)];
}

void expect_point(const Plan& point, const Placement& p) {
  test::expect_holds(through_a_file(point, p), p);
  const int n = point.micro_batches;
  ASSERT_TRUE(point.capacity);
  EXPECT_EQ(point.capacity->memory, *std::max_element(point.peak_memory.begin(), point.peak_memory.end()));
  const Answer whole = enumerate(p, n, point.objective);
  if (whole.known) expect_claims(point, p, whole);
  const Answer within = enumerate(within_capacity(p, point.capacity->memory), n, point.objective);
  if (!within.known) return;
  ASSERT_TRUE(within.least) << "a plan where nothing fits";
  EXPECT_LE(point.capacity->lower_bound, *within.least);
}

TEST(Strange, WhatIsSaidOfTheCurveIsTrue) {
  Dice random(5);
  int points = 0, curves = 0, proved = 0, infeasible = 0;
  for (int i = 0; i < rounds(60) && !testing::Test::HasFailure(); ++i) {
    const int n = 1 + random.below(3);
    const Placement p = of_either_kind(random, 1 + random.below(kMostBlocks[n]), n);
    const Objective objective = any_objective(random);
    SCOPED_TRACE(
        fmt::format("round {}, {}, {} micro-batches of\n{}", i, to_string(objective), n, as_file(p)));
    try {
      const SearchOptions options{
          .micro_batches = n, .objective = objective, .time_limit_seconds = 0, .effort = 10};
      const ParetoCurve curve = pareto_memory(p, options, 4);
      ++curves;
      for (const Plan& point : curve.plans) expect_point(point, p);
      points += static_cast<int>(curve.plans.size());
      proved += curve.least_proved;
      if (!curve.least_proved) continue;
      const Answer less = enumerate(within_capacity(p, curve.least - 1), n, objective);
      EXPECT_FALSE(less.known && less.least) << "a schedule within less than " << curve.least;
    } catch (const InfeasibleError& error) {
      ++infeasible;
      const Answer answer = enumerate(p, n, objective);
      EXPECT_FALSE(answer.known && answer.least) << error.what();
    } catch (const UndecidedError&) {
    }
  }
  EXPECT_GT(points, curves);
  EXPECT_GT(proved, curves / 4);
  print("{} curves of {} points, {} proved, {} infeasible\n", curves, points, proved, infeasible);
}

TEST(Strange, WhatIsSaidOfManyMicroBatchesHolds) {
  Dice random(6);
  int plans = 0, repeats = 0;
  for (int i = 0; i < rounds(40) && !testing::Test::HasFailure(); ++i) {
    const int n = 250 + random.below(500);
    const Placement p = strange(random, 1 + random.below(5));
    const Objective objective = any_objective(random);
    SCOPED_TRACE(
        fmt::format("round {}, {}, {} micro-batches of\n{}", i, to_string(objective), n, as_file(p)));
    try {
      const Plan plan =
          search(p, {.micro_batches = n, .objective = objective, .time_limit_seconds = 0, .effort = 2});
      test::expect_holds(plan, p);
      ++plans;
      repeats += plan.steady_state.count > 0;
    } catch (const InputError&) {  // more memory than is planned
    } catch (const InfeasibleError&) {
    } catch (const UndecidedError&) {
    }
  }
  EXPECT_GT(repeats, rounds(40) / 4);
  print("{} plans, {} that repeat\n", plans, repeats);
}

/// What the times of the placement are multiples of.
Nanoseconds unit_of(const Placement& p) {
  Nanoseconds unit = 0;
  for (std::size_t b = 0; b < p.blocks.size(); ++b) {
    unit = std::gcd(unit, p.blocks[b].time);
    for (const Dependency& input : p.blocks[b].after)
      unit = std::gcd(unit, p.transfer(input, static_cast<int>(b)));
  }
  return std::max<Nanoseconds>(1, unit);
}

/// Per device what one micro-batch leaves behind when all of it is done.
std::vector<Bytes> kept_by(const Placement& p) {
  std::vector<Bytes> kept(p.devices.size(), 0);
  for (const Block& block : p.blocks) {
    for (const int d : block.devices) kept[d] += block.memory;
  }
  return kept;
}

TEST(Strange, WhatIsSaidOfTheRepeatingPartIsTrue) {
  constexpr double most = 2e5;
  Dice random(8);
  int found = 0, proved = 0, memory_proved = 0, none = 0, infeasible = 0;
  for (int i = 0; i < rounds(200) && !testing::Test::HasFailure(); ++i) {
    Placement p = strange(random, 1 + random.below(4));
    if (random.chance(10)) test::enlarge(p, 4);
    const bool years = random.chance(10);  // which nobody can try one by one
    if (years) test::lengthen(p, 4);
    SCOPED_TRACE(fmt::format("round {}, of\n{}", i, as_file(p)));
    const Nanoseconds unit = unit_of(p);
    Nanoseconds all = unit;
    for (std::size_t b = 0; b < p.blocks.size(); ++b) {
      all += p.blocks[b].time;
      for (const Dependency& input : p.blocks[b].after) all += p.transfer(input, static_cast<int>(b));
    }
    const std::vector<Bytes> kept = kept_by(p);
    const bool steady = std::all_of(kept.begin(), kept.end(), [](Bytes bytes) { return bytes == 0; });
    try {
      const RepeatingPart part = repeating_part(p, {});
      const Repetend& r = part.repetend;
      EXPECT_LE(part.bound, r.period == 0 ? part.bound : r.period);
      if (r.period == 0) {
        ++none;
        continue;
      }
      ++found;
      proved += r.period_proved;
      memory_proved += r.memory_proved;
      if (years || r.unroll > 2) continue;
      test::AllRepetends shorter(p, r.unroll, std::max(unit, r.period - unit), unit);
      if (r.period_proved && r.period > unit && steady && shorter.size() < most) {
        EXPECT_FALSE(shorter.best()) << "period " << r.period << " is not the least";
      }
      test::AllRepetends same(p, r.unroll, r.period, unit);
      if (!steady || same.repetitions() >= most) continue;
      const test::Peaks own = test::AllRepetends(same).peaks_of(r.start);
      Bytes largest = 0;
      for (std::size_t d = 0; d < p.devices.size(); ++d) {
        EXPECT_LE(part.held[d], p.devices[d].memory);
        largest = std::max(largest, part.held[d]);
      }
      EXPECT_LE(own.largest, largest);
      if (!r.memory_proved || same.size() >= most) continue;
      const std::optional<test::Peaks> best = same.best();
      EXPECT_TRUE(!best || best->largest >= largest) << "a memory of " << largest << " is not the least";
    } catch (const InfeasibleError& error) {
      ++infeasible;
      if (years || !steady) continue;
      test::AllRepetends any(p, 1, all, unit);
      if (any.size() < most) {
        EXPECT_FALSE(any.best()) << error.what();
      }
    }
  }
  EXPECT_GT(proved, found / 2);
  EXPECT_GT(memory_proved, found / 4);
  EXPECT_GT(infeasible, 0);
  EXPECT_LT(none * 20, rounds(200)) << "undecided";
  print("{} found, {} proved, {} in proved memory, {} none found, {} infeasible\n", found, proved,
        memory_proved, none, infeasible);
}

}  // namespace
}  // namespace ostinato
