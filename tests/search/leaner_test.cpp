// SPDX-License-Identifier: Apache-2.0
// As short a plan in less memory.

#include "search/leaner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "search/plan/orders.h"
#include "search/search.h"
#include "search/shortest.h"
#include "tests/search/checked.h"
#include "tests/search/small.h"
#include "tests/search/strange.h"

namespace ostinato {
namespace {

Bytes most(const Plan& plan) { return *std::max_element(plan.peak_memory.begin(), plan.peak_memory.end()); }

struct Stage {
  int device;
  Nanoseconds forward, backward;
  Bytes kept;
};

Placement chain(int devices, const std::vector<Stage>& stages) {
  Placement p = test::on_devices(devices);
  std::vector<int> after;
  for (const Stage& s : stages)
    after = {test::add(p, "F", {s.device}, s.forward, {.memory = s.kept, .after = after})};
  for (auto s = stages.rbegin(); s != stages.rend(); ++s)
    after = {test::add(p, "B", {s->device}, s->backward, {.memory = -s->kept, .after = after})};
  for (std::size_t b = 0; b < p.blocks.size(); ++b) p.blocks[b].name += std::to_string(b);
  return p;
}

/// As measured: a device whose stages are short may run far ahead of the other one, or just in time.
Placement uneven() {
  return chain(2, {{0, 5, 9, 3}, {1, 62, 120, 45}, {0, 236, 473, 171}, {1, 208, 384, 129}});
}

Placement random_chain(test::Dice& random) {
  std::vector<Stage> stages;
  for (int s = 0; s < 4; ++s) {
    const Nanoseconds forward = 1 + random.below(20);
    stages.push_back({s % 2, forward, forward * 2 + random.below(5), 1 + random.below(20)});
  }
  return chain(2, stages);
}

SearchOptions options_for(int micro_batches, Objective objective = Objective::makespan) {
  return {.micro_batches = micro_batches, .objective = objective, .time_limit_seconds = 0};
}

TEST(Leaner, NoStageRunsFurtherAheadThanTheStepNeeds) {
  for (const int n : {8, 16, 64}) {
    const Plan plan = test::searched(uneven(), n);
    EXPECT_TRUE(plan.optimal.makespan) << n;
    EXPECT_LE(most(plan), 600) << n;
  }
  EXPECT_GT(most(shortest_plan(uneven(), options_for(8))), 1200);
}

TEST(Leaner, NeverLongerAndNeverMore) {
  test::Dice random(23);
  int less = 0;
  for (int i = 0; i < 80; ++i) {
    SCOPED_TRACE(i);
    const Placement p = i % 2 == 0 ? test::strange(random, 4) : random_chain(random);
    for (const Objective objective : {Objective::makespan, Objective::span, Objective::latency}) {
      const SearchOptions options = options_for(i % 2 == 0 ? 3 : 8, objective);
      std::optional<Plan> shortest;
      try {
        shortest = shortest_plan(p, options);
      } catch (const std::runtime_error&) {  // nothing fits, or it is not known
        continue;
      }
      const Plan plan = in_less_memory(p, options, *shortest);
      test::expect_holds(plan, p);
      EXPECT_LE(objective_value(objective, p, plan.schedule),
                objective_value(objective, p, shortest->schedule));
      EXPECT_LE(plan.makespan, shortest->makespan);
      EXPECT_LE(most(plan), most(*shortest));
      EXPECT_EQ(plan.lower_bound.makespan, shortest->lower_bound.makespan);
      less += most(plan) < most(*shortest);
    }
  }

  EXPECT_GT(less, 10);
}

TEST(Leaner, WhatWasAskedForByNameStays) {
  SearchOptions options = options_for(8);
  options.method = "gpipe";
  EXPECT_EQ(search(uneven(), options).search.method, "gpipe");
}

TEST(Leaner, AStopLeavesThePlan) {
  const std::atomic<bool> stop = true;
  SearchOptions options = options_for(16);
  const Plan shortest = shortest_plan(uneven(), options);
  options.stop = &stop;
  EXPECT_EQ(in_less_memory(uneven(), options, shortest).peak_memory, shortest.peak_memory);
}

}  // namespace
}  // namespace ostinato
