// SPDX-License-Identifier: Apache-2.0
#include "search/checker/checker.h"

#include <gtest/gtest.h>

#include <map>

#include "search/checker/bounds.h"
#include "search/plan/orders.h"
#include "tests/search/random_plan.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::add;
using test::complete_figures;
using test::on_devices;
using test::oracle;
using test::Random;

using Strings = std::vector<std::string>;

/// Two devices, F on 0 then G on 1 with 3 ns between; F holds 4 bytes, which G2 (on 0) gives back.
Placement two_devices() {
  Placement p = on_devices(2, 10);
  p.link = {.latency = 3, .bytes_per_second = 0};
  add(p, "F", {0}, 2, {.memory = 4});
  add(p, "G", {1}, 5, {.workspace = 2, .after = {0}});
  add(p, "R", {0}, 1, {.memory = -4, .after = {1}});
  return p;
}

/// F 0-2 and 2-4, G 5-10 and 10-15, R 13-14 and 18-19.
Plan valid_plan(const Placement& p) {
  Plan plan;
  plan.placement_name = p.name;
  plan.micro_batches = 2;
  plan.schedule = {{0, 0, 0}, {0, 1, 2}, {1, 0, 5}, {1, 1, 10}, {2, 0, 13}, {2, 1, 18}};
  complete_figures(plan, p);
  return plan;
}

Strings failures(const Plan& plan, const Placement& p) { return check_plan(plan, p).failures; }

TEST(CheckerTest, AcceptsAValidPlanAndSaysWhatItChecked) {
  const Placement p = two_devices();
  const CheckResult result = check_plan(valid_plan(p), p);
  EXPECT_EQ(result.failures, Strings{});
  EXPECT_EQ(
      result.passed,
      (Strings{"3 blocks, 2 micro-batches: each block runs exactly once for each micro-batch",
               "every device runs one block at a time", "every block starts after its inputs have arrived",
               "no device ever exceeds its memory",
               "the steps are listed by start, first device, name, micro-batch", "the makespan is 19 ns",
               "the span is 19 ns", "the peak memory of device 0 ('d0') in the schedule is 8 bytes",
               "the peak memory of device 1 ('d1') in the schedule is 2 bytes",
               "the plan claims no repeating part",
               "no schedule ends before 14 ns (M1: the longest path of one micro-batch, through block 'F')",
               "1 micro-batch cannot repeat faster than every 6 ns (P2: the memory of device 0)"}));
}

TEST(CheckerTest, NamesAMissingStep) {
  const Placement p = two_devices();
  Plan plan = valid_plan(p);
  plan.schedule.erase(plan.schedule.begin() + 3);
  EXPECT_EQ(failures(plan, p), Strings{"block 'G' of micro-batch 1 is missing"});
}

TEST(CheckerTest, NamesADoubledStep) {
  const Placement p = two_devices();
  Plan plan = valid_plan(p);
  plan.schedule.push_back({2, 1, 30});
  EXPECT_EQ(failures(plan, p), Strings{"block 'R' of micro-batch 1 is listed 2 times"});
}

TEST(CheckerTest, NamesWhatIsOutOfRange) {
  const Placement p = two_devices();
  Plan plan = valid_plan(p);
  plan.schedule[0].start = -1;
  plan.schedule[1].micro_batch = 2;
  plan.schedule[2].block = 3;
  plan.schedule[3].start = std::numeric_limits<Nanoseconds>::max();
  EXPECT_EQ(failures(plan, p),
            (Strings{"block 'F' of micro-batch 0 starts at -1 ns, before 0",
                     "block 'F' of micro-batch 2 is listed, but the micro-batches are 0 to 1",
                     "a step names block 3; the placement has 3 blocks",
                     "block 'G' of micro-batch 1 starts at 9223372036854775807 ns and ends beyond 2^63 ns"}));
}

TEST(CheckerTest, APlanOfNoMicroBatchesIsRefused) {
  const Placement p = two_devices();
  Plan plan;
  plan.placement_name = p.name;
  EXPECT_EQ(failures(plan, p), Strings{"a plan needs at least one micro-batch, not 0"});
}

TEST(CheckerTest, AHugeNumberOfMicroBatchesEndsAtTheLimitOfMessages) {
  const Placement p = two_devices();
  Plan plan = valid_plan(p);
  plan.micro_batches = std::numeric_limits<int>::max();
  EXPECT_EQ(failures(plan, p).size(), 20u);
}

TEST(CheckerTest, NamesTwoBlocksOnOneDevice) {
  const Placement p = two_devices();
  Plan plan = valid_plan(p);
  plan.schedule[3].start = 9;
  complete_figures(plan, p);
  EXPECT_EQ(failures(plan, p),
            Strings{"device 1 ('d1') runs block 'G' of micro-batch 0 from 5 to 10 ns, but block 'G' of "
                    "micro-batch 1 starts there at 9 ns, 1 ns too early"});
}

TEST(CheckerTest, NamesAnInputThatHasNotArrived) {
  const Placement p = two_devices();
  Plan plan = valid_plan(p);
  plan.schedule[2].start = 3;
  complete_figures(plan, p);
  EXPECT_EQ(failures(plan, p),
            Strings{"block 'G' of micro-batch 0 starts at 3 ns, 2 ns before its input from block 'F' "
                    "arrives at 5 ns"});
}

TEST(CheckerTest, NamesDeviceInstantAndBytesOverMemory) {
  Placement p = two_devices();
  const Plan plan = valid_plan(p);
  p.devices[0].memory = 7;
  EXPECT_EQ(failures(plan, p), Strings{"device 0 ('d0') exceeds its 7 B from 2 ns on, when block 'F' of "
                                       "micro-batch 1 starts there; at its peak it exceeds them by 1 B"});
  p.devices[0].memory = 10;
  p.devices[1].memory = 1;
  EXPECT_EQ(failures(plan, p), Strings{"device 1 ('d1') exceeds its 1 B from 5 ns on, when block 'G' of "
                                       "micro-batch 0 starts there; at its peak it exceeds them by 1 B"});
}

TEST(CheckerTest, NamesStaticMemoryThatDoesNotFit) {
  Placement p = two_devices();
  p.devices[1].static_memory = 11;
  const Plan plan = valid_plan(p);
  EXPECT_EQ(failures(plan, p), Strings{"device 1 ('d1') always holds 11 B, 1 B more than its 10 B"});
}

TEST(CheckerTest, WhatEndsGivesBackBeforeWhatStartsTakes) {
  Placement p = on_devices(1, 4);
  add(p, "F", {0}, 2, {.memory = 4});
  add(p, "B", {0}, 2, {.memory = -4, .after = {0}});
  Plan plan;
  plan.placement_name = p.name;
  plan.micro_batches = 2;
  plan.schedule = {{0, 0, 0}, {1, 0, 2}, {0, 1, 4}, {1, 1, 6}};
  complete_figures(plan, p);
  EXPECT_EQ(failures(plan, p), Strings{});
  EXPECT_EQ(plan.peak_memory, std::vector<Bytes>{4});
}

TEST(CheckerTest, ABlockOfNoTimeStandsBetweenOthersNotInside) {
  Placement p = on_devices(1);
  add(p, "A", {0}, 4);
  add(p, "Z", {0}, 0);
  Plan plan;
  plan.placement_name = p.name;
  plan.micro_batches = 1;
  for (const Nanoseconds at : {0, 4, 9}) {
    plan.schedule = {{0, 0, 0}, {1, 0, at}};
    complete_figures(plan, p);
    EXPECT_EQ(failures(plan, p), Strings{}) << at;
  }
  plan.schedule = {{0, 0, 0}, {1, 0, 3}};
  complete_figures(plan, p);
  EXPECT_EQ(failures(plan, p),
            Strings{"device 0 ('d0') runs block 'A' of micro-batch 0 from 0 to 4 ns, but block 'Z' of "
                    "micro-batch 0 starts there at 3 ns, 1 ns too early"});
}

TEST(CheckerTest, NamesStepsInTheWrongOrder) {
  const Placement p = two_devices();
  Plan plan = valid_plan(p);
  std::swap(plan.schedule[1], plan.schedule[2]);
  EXPECT_EQ(failures(plan, p),
            Strings{"block 'G' of micro-batch 0 is listed before block 'F' of micro-batch 1; steps are "
                    "listed by start, first device, name, micro-batch"});
}

TEST(CheckerTest, NamesWrongFigures) {
  const Placement p = two_devices();
  Plan plan = valid_plan(p);
  plan.placement_name = "other";
  plan.makespan = 20;
  plan.span = 7;
  plan.peak_memory[1] = 0;
  EXPECT_EQ(
      failures(plan, p),
      (Strings{
          "the plan is for placement 'other', not for 'small'",
          "the makespan is 19 ns, not 20 as the plan says: 1 less",
          "the span is 19 ns, not 7 as the plan says: 12 more",
          "the peak memory of device 1 ('d1') in the schedule is 2 bytes, not 0 as the plan says: 2 more"}));
  plan = valid_plan(p);
  plan.peak_memory = {8};
  EXPECT_EQ(failures(plan, p), Strings{"peak_memory has 1 entry; the placement has 2 devices"});
}

/// One device, F = 2 and B = 3, 1F1B: period 5 from micro-batch 0 on.
Placement one_device() {
  Placement p = on_devices(1, 1);
  add(p, "F", {0}, 2, {.memory = 1});
  add(p, "B", {0}, 3, {.memory = -1, .after = {0}});
  return p;
}

Plan periodic_plan(const Placement& p) {
  Plan plan;
  plan.placement_name = p.name;
  plan.micro_batches = 3;
  plan.schedule = {{0, 0, 0}, {1, 0, 2}, {0, 1, 5}, {1, 1, 7}, {0, 2, 10}, {1, 2, 12}};
  complete_figures(plan, p);
  plan.steady_state = {.period = 5, .unroll = 1, .first = 0, .count = 3};
  plan.lower_bound = {.makespan = 15, .period = 5};
  plan.optimal = {.makespan = true, .period = true};
  return plan;
}

TEST(CheckerTest, AcceptsTrueClaims) {
  const Placement p = one_device();
  const CheckResult result = check_plan(periodic_plan(p), p);
  EXPECT_EQ(result.failures, Strings{});
  const Strings& passed = result.passed;
  ASSERT_GE(passed.size(), 5u);
  EXPECT_EQ(
      Strings(passed.end() - 5, passed.end()),
      (Strings{"3 repetends of 1 micro-batch, one every 5 ns",
               "no schedule ends before 15 ns (M2: the work of device 0 with what comes before and after it)",
               "the makespan of 15 ns is optimal",
               "1 micro-batch cannot repeat faster than every 5 ns (P1: the work of device 0)",
               "the period of 5 ns is optimal"}));
}

TEST(CheckerTest, WhatIsProvedOfNoTimeHasAReason) {
  Placement p = one_device();
  for (Block& block : p.blocks) block.time = 0;
  Plan plan;
  plan.placement_name = p.name;
  plan.micro_batches = 1;
  plan.schedule = {{0, 0, 0}, {1, 0, 0}};
  complete_figures(plan, p);
  for (const Objective objective : {Objective::makespan, Objective::span, Objective::latency}) {
    plan.objective = objective;
    plan.optimal = {.makespan = true, .objective = objective != Objective::makespan};
    const CheckResult result = check_plan(plan, p);
    EXPECT_EQ(result.failures, Strings{});
    for (const std::string& text : result.passed) EXPECT_EQ(text.find("()"), std::string::npos) << text;
  }
}

TEST(CheckerTest, RefusesFalseSteadyStates) {
  const Placement p = one_device();
  const auto with = [&](SteadyState steady) {
    Plan plan = periodic_plan(p);
    plan.optimal.period = false;
    plan.lower_bound.period = 0;
    plan.steady_state = steady;
    return failures(plan, p);
  };
  EXPECT_EQ(with({5, 1, 0, 4}), Strings{"steady_state covers micro-batches 0 to 3, but the plan has 3"});
  EXPECT_EQ(with({5, 0, 0, 1}), Strings{"steady_state has a negative figure, or an unroll below 1"});
  EXPECT_EQ(with({5, 1, 0, 0}), Strings{"steady_state has no repetends, but a period of 5 ns"});
  EXPECT_EQ(with({6, 1, 1, 2}), (Strings{"block 'F' of micro-batch 2 starts at 10 ns; by steady_state, a "
                                         "period of 6 ns after micro-batch 1, it should start at 11 ns",
                                         "block 'B' of micro-batch 2 starts at 12 ns; by steady_state, a "
                                         "period of 6 ns after micro-batch 1, it should start at 13 ns"}));
  EXPECT_EQ(with({std::numeric_limits<Nanoseconds>::max(), 2147483647, 2147483647, 2147483647}).size(), 1u);
  EXPECT_EQ(with({5, 1, 1, 2}), Strings{});
  Plan plan = periodic_plan(p);  // it claims its period to be optimal
  for (const SteadyState& steady :
       {SteadyState{5, 1, 0, 2'000'000'000}, SteadyState{5, 2'000'000'000, 0, 2}}) {
    plan.steady_state = steady;
    EXPECT_EQ(failures(plan, p).size(), 1u) << "and nothing is read behind its end";
    EXPECT_FALSE(check_schedule(plan, p).ok());
  }
}

TEST(CheckerTest, RefusesFalseBoundsAndOptimality) {
  const Placement p = one_device();
  Plan plan = periodic_plan(p);
  plan.lower_bound = {.makespan = 16, .period = 6};
  // NOLINTBEGIN(bugprone-suspicious-missing-comma): one text over two lines
  EXPECT_EQ(
      failures(plan, p),
      (Strings{"lower_bound.makespan is 16 ns, but only 15 ns are proved (M2: the work of device 0 with what "
               "comes before and after it)",
               "optimal.makespan is true, but the makespan is 15 ns and its lower bound 16 ns",
               "lower_bound.period is 6 ns, but only 5 ns are proved (P1: the work of device 0)",
               "steady_state.period is 5 ns, below its lower bound of 6 ns: these repetends cannot repeat",
               "optimal.period is true, but the period is 5 ns and its lower bound 6 ns"}));
  // NOLINTEND(bugprone-suspicious-missing-comma)
  plan.lower_bound = {.makespan = 14, .period = 4};
  EXPECT_EQ(failures(plan, p),
            (Strings{"optimal.makespan is true, but the makespan is 15 ns and its lower bound 14 ns",
                     "optimal.period is true, but the period is 5 ns and its lower bound 4 ns"}));
  plan.optimal = {false, false};
  EXPECT_EQ(failures(plan, p), Strings{});
}

TEST(CheckerTest, APeriodThatCannotGoOnIsNotOptimal) {
  // Every 2 ns fits twice, but a third F would meet the first G.
  Placement p = on_devices(1);
  add(p, "F", {0}, 1);
  add(p, "G", {0}, 1, {.after = {0}});
  Plan plan;
  plan.placement_name = p.name;
  plan.micro_batches = 2;
  plan.schedule = {{0, 0, 0}, {0, 1, 2}, {1, 0, 4}, {1, 1, 6}};
  complete_figures(plan, p);
  plan.steady_state = {.period = 2, .unroll = 1, .first = 0, .count = 2};
  plan.lower_bound.period = 2;
  EXPECT_EQ(failures(plan, p), Strings{});
  plan.optimal.period = true;
  EXPECT_EQ(failures(plan, p), Strings{"optimal.period is true, but at no time do all blocks repeat"});
}

// ---- Mutations: the checker and a slow oracle judge the same plans.

void shift(Plan& plan, Random& random) {
  const Nanoseconds by = random.between(-2, 3);
  for (ScheduledBlock& step : plan.schedule) step.start += by;
}

ScheduledBlock& any_step(Plan& plan, Random& random) {
  return plan.schedule[random.between(0, static_cast<std::int64_t>(plan.schedule.size()) - 1)];
}

void change_figure(Plan& plan, Random& random) {
  const std::int64_t by = random.between(-1, 1);
  const std::int64_t which = random.between(0, 2);
  if (which == 0) plan.makespan += by;
  if (which == 1) plan.span += by;
  if (which == 2) plan.peak_memory[random.next() % plan.peak_memory.size()] += by;
}

/// One change of a kind that a wrong search or a hand could make. Afterwards the figures follow, half of the
/// time.
void mutate(Plan& plan, Placement& p, Random& random) {
  const int kind = static_cast<int>(random.between(0, 9));
  switch (kind) {
    case 0:
      any_step(plan, random).start += random.between(-3, 3);
      break;
    case 1:
      std::swap(any_step(plan, random).start, any_step(plan, random).start);
      break;
    case 2:
      plan.schedule.erase(plan.schedule.begin() +
                          random.between(0, static_cast<std::int64_t>(plan.schedule.size()) - 1));
      break;
    case 3:
      plan.schedule.push_back(any_step(plan, random));
      break;
    case 4:
      shift(plan, random);
      break;
    case 5:
      any_step(plan, random).micro_batch = static_cast<int>(random.between(-1, plan.micro_batches));
      break;
    case 6:
      p.devices[random.next() % p.devices.size()].memory -= random.between(0, 2);
      break;
    case 7:
      change_figure(plan, random);
      return;
    case 8:
      std::swap(any_step(plan, random), any_step(plan, random));
      return;
    case 9:
      plan.steady_state = {random.between(0, 9), static_cast<int>(random.between(1, 2)),
                           static_cast<int>(random.between(0, 2)), static_cast<int>(random.between(0, 3))};
      return;
    default:
      break;
  }
  if (random.chance(70)) complete_figures(plan, p);
}

TEST(CheckerMutationTest, AgreesWithTheOracle) {
  std::map<std::string, int> verdicts;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    Random random(seed);
    Placement p = test::random_placement(random);
    const Plan valid = test::random_plan(p, static_cast<int>(random.between(1, 4)), random);
    test::limit_memory(p, valid, random.between(0, 2));
    ASSERT_EQ(failures(valid, p), Strings{}) << "seed " << seed;
    ASSERT_EQ(oracle(valid, p), "") << "seed " << seed;
    for (int m = 0; m < 10; ++m) {
      Plan plan = valid;
      Placement changed = p;
      mutate(plan, changed, random);
      if (plan.schedule.empty()) continue;
      const std::string broken = oracle(plan, changed);
      const CheckResult result = check_plan(plan, changed);
      ASSERT_EQ(result.ok(), broken.empty())
          << "seed " << seed << ", mutation " << m << ", oracle: '" << broken
          << "', checker: " << (result.ok() ? "accepted" : result.failures[0]);
      ++verdicts[broken];
    }
  }
  int refused = 0;
  for (const auto& [broken, times] : verdicts) {
    if (!broken.empty()) refused += times;
  }
  EXPECT_GE(refused, 8000);
  EXPECT_GE(verdicts[""], 2000);
  for (const char* rule :
       {"number", "micro-batch", "start", "overlap", "input", "listing", "makespan", "span", "memory", "peak",
        "twice", "period", "steady range", "period of nothing"}) {
    EXPECT_GE(verdicts[rule], 10) << rule;
  }
}

// Claims up to what is proved are accepted; what some plan shows to be wrong is refused.
TEST(CheckerMutationTest, RefusesEveryFalseClaim) {
  int optimal = 0, beyond = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    Placement p = test::random_placement(random);
    const int n = static_cast<int>(random.between(1, 3));
    Plan plan = test::random_plan(p, n, random, 0);
    test::limit_memory(p, plan, random.between(0, 2));
    Nanoseconds best = plan.makespan;  // of some plan that fits
    for (int i = 0; i < 10; ++i) {
      const Plan other = test::random_plan(p, n, random, 0);
      if (oracle(other, p).empty()) best = std::min(best, other.makespan);
    }
    const checker::Bounds bounds(p);
    const auto makespan = static_cast<Nanoseconds>(bounds.makespan(n, checker::kUnbounded).value);
    const auto period = static_cast<Nanoseconds>(bounds.period(1).value);
    plan.lower_bound = {.makespan = makespan, .period = period};
    plan.optimal.makespan = makespan == plan.makespan;
    optimal += plan.optimal.makespan ? 1 : 0;
    ASSERT_EQ(failures(plan, p), Strings{}) << "seed " << seed;

    constexpr std::int64_t kWork = 1'000'000;
    Plan changed = plan;
    changed.lower_bound.makespan = best + 1;
    ASSERT_FALSE(check_plan(changed, p, kWork).ok()) << "seed " << seed;
    changed = plan;
    ++changed.lower_bound.period;
    ASSERT_FALSE(check_plan(changed, p, kWork).ok()) << "seed " << seed;
    changed = plan;
    changed.optimal.makespan = true;  // though it is above its bound
    ASSERT_EQ(check_plan(changed, p, kWork).ok(), plan.optimal.makespan) << "seed " << seed;
    changed.lower_bound.makespan = plan.makespan;
    if (best < plan.makespan) {
      ASSERT_FALSE(check_plan(changed, p, kWork).ok()) << "seed " << seed;
      ++beyond;
    }
    changed = plan;
    changed.optimal.period = true;  // no part repeats
    ASSERT_FALSE(check_plan(changed, p, kWork).ok()) << "seed " << seed;
  }
  EXPECT_GE(optimal, 100);
  EXPECT_GE(beyond, 100);
}

}  // namespace
}  // namespace ostinato
