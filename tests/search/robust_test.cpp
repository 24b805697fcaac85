// SPDX-License-Identifier: Apache-2.0
// As short a plan for times that vary.

#include "search/robust.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <stdexcept>

#include "search/plan/memory.h"
#include "search/search.h"
#include "search/shortest.h"
#include "tests/search/checked.h"
#include "tests/search/small.h"
#include "tests/search/strange.h"

namespace ostinato {
namespace {

SearchOptions options_for(int micro_batches, std::int64_t ppm = 300'000) {
  return {.micro_batches = micro_batches, .time_limit_seconds = 0, .threads = 1, .robust_ppm = ppm};
}

/// A chain there and back, with backwards in two halves, and room for two micro-batches more than the
/// devices.
Placement split_chain(int devices) {
  Placement p = test::on_devices(devices);
  for (Device& device : p.devices) device.memory = devices + 2;
  std::vector<int> after;
  for (int d = 0; d < devices; ++d) {
    after = {test::add(p, "F", {d}, 10, {.memory = 1, .after = after})};
    p.blocks.back().name += std::to_string(d);
  }
  for (int d = devices; d-- > 0;) {
    after = {test::add(p, "B", {d}, 10, {.after = after})};
    p.blocks.back().name += std::to_string(d);
    test::add(p, "W", {d}, 10, {.memory = -1, .after = after});
    p.blocks.back().name += std::to_string(d);
  }
  return p;
}

TEST(Robust, AsShortAndLessStretched) {
  const Placement p = split_chain(4);
  const Plan usual = search(p, options_for(8, 0)), robust = search(p, options_for(8));
  test::expect_holds(robust, p);
  EXPECT_EQ(robust.makespan, usual.makespan);
  EXPECT_TRUE(robust.optimal.makespan);
  EXPECT_EQ(usual.search.robust.ppm, 0);
  EXPECT_EQ(robust.search.robust.ppm, 300'000);
  EXPECT_LT(robust.search.robust.within * 100, robust.search.robust.shortest * 97);
  // In replays that neither was chosen by.
  const auto at_95 = [&](const Plan& plan) { return varied_makespans(p, plan, 300'000, 500, 99)[949]; };
  EXPECT_LT(at_95(robust) * 100, at_95(usual) * 97);
}

TEST(Robust, NeverLongerAndAlwaysTheSame) {
  test::Dice random(31);
  int varied = 0;
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    const Placement p = i % 2 == 0 ? test::strange(random, 4) : split_chain(2 + random.below(3));
    const SearchOptions options = options_for(i % 2 == 0 ? 4 : 3 + random.below(5));
    std::optional<Plan> shortest;
    try {
      shortest = shortest_plan(p, options);
    } catch (const std::runtime_error&) {  // nothing fits, or it is not known
      continue;
    }
    const Plan plan = in_variation(p, options, {*shortest});
    test::expect_holds(plan, p);
    EXPECT_LE(plan.makespan, shortest->makespan);
    EXPECT_TRUE(fits_memory(p, plan.peak_memory));
    EXPECT_EQ(plan.lower_bound.makespan, shortest->lower_bound.makespan);
    EXPECT_EQ(in_variation(p, options, {*shortest}).schedule, plan.schedule);
    varied += plan.schedule != shortest->schedule;
  }
  EXPECT_GT(varied, 10);
}

TEST(Robust, WhatItCannotJudgeStaysAsItIs) {
  Placement p = split_chain(2);
  SearchOptions options = options_for(4);
  options.objective = Objective::span;
  const Plan of_span = shortest_plan(p, options);
  EXPECT_EQ(in_variation(p, options, {of_span}).schedule, of_span.schedule);
  p.blocks[0].time = 0;
  options.objective = Objective::makespan;
  const Plan at_once = shortest_plan(p, options);
  const auto robust = in_variation(p, options, {at_once}).search.robust;
  EXPECT_EQ(robust.ppm, 0);
  EXPECT_EQ(robust.why_not, "block '" + p.blocks[0].name + "' takes no time");
}

TEST(Robust, AStopLeavesAPlan) {
  const Placement p = split_chain(4);
  const std::atomic<bool> stop = true;
  SearchOptions options = options_for(8);
  const Plan shortest = shortest_plan(p, options);
  options.stop = &stop;
  const Plan plan = in_variation(p, options, {shortest});
  test::expect_holds(plan, p);
  EXPECT_EQ(plan.schedule, shortest.schedule);
}

}  // namespace
}  // namespace ostinato
