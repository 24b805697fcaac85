// SPDX-License-Identifier: Apache-2.0
// Small operator graphs with memory that is nearly full, one device and several: every assignment and order
// is tried, and `best` stands beside it with what it finds, claims and excludes.

#include "search/graph/exact.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "search/files/error.h"
#include "search/graph/best.h"
#include "search/graph/bound.h"
#include "search/graph/csv.h"
#include "search/graph/simulate.h"
#include "tests/search/every_schedule.h"
#include "tests/search/graph/graph_small.h"
#include "tests/search/rounds.h"

namespace ostinato::graph {
namespace {

using test::least_makespan;

struct Drawn {
  OperatorGraph graph;
  GraphDevices devices;
};

/// One to three devices, five to seven vertices, and memory of which little is left over.
Drawn draw(std::uint64_t seed) {
  Random random(seed);
  const int count = seed % 7 == 0 ? 1 : 2 + random.below(2);
  Drawn drawn{test::random_graph(seed, {.vertices = count == 3 ? 5 : 5 + random.below(3),
                                        .edge_percent = 20 + random.below(40),
                                        .group_percent = 10,
                                        .gpu_percent = count == 1 ? 0 : 10}),
              test::random_devices(seed, count)};
  const std::int64_t total =
      std::accumulate(drawn.graph.memory.begin(), drawn.graph.memory.end(), std::int64_t{0});
  for (GraphDevice& device : drawn.devices.devices)
    device.memory = total * (count == 1 ? 100 : 90 + random.below(70)) / 100 / count;
  return drawn;
}

TEST(GraphExactTest, IsWhatEverySchedulesSay) {
  int solved = 0, infeasible = 0;
  for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(test::rounds(150)); ++seed) {
    SCOPED_TRACE(seed);
    const Drawn drawn = draw(seed);
    try {
      const GraphCosts costs(drawn.graph, drawn.devices);
      const Ticks least = least_makespan(costs);
      const GraphBest best = best_partition(costs);
      ASSERT_EQ(best.infeasible, least == std::numeric_limits<Ticks>::max());
      ASSERT_EQ(best.infeasible, !best.reason.empty());
      infeasible += best.infeasible ? 1 : 0;
      if (best.infeasible) continue;
      ++solved;
      ASSERT_EQ(best.solution.makespan, least);
      ASSERT_EQ(best.lower_bound, least);
      ASSERT_LE(graph_lower_bound(costs), least);
      ASSERT_EQ(check_assignment(costs, best.solution.assignment), "");
      ASSERT_EQ(check_timeline(costs, best.solution.assignment, best.solution.start), "");
    } catch (const InfeasibleError&) {  // a group that fits no device: nothing is left to compare
    }
  }
  EXPECT_GE(solved, 60);
  EXPECT_GE(infeasible, 3);
}

TEST(GraphExactTest, NothingShorterIsProved) {
  const OperatorGraph g = test::random_graph(3, {.vertices = 8});
  const GraphDevices d = test::random_devices(3, 3);
  const GraphCosts costs(g, d);
  const ExactPartition exact = exact_partition(costs);
  ASSERT_TRUE(exact.complete && exact.solution);
  const ExactPartition none = exact_partition(costs, {.below = exact.solution->makespan});
  EXPECT_TRUE(none.complete);
  EXPECT_FALSE(none.solution);
  const ExactPartition again = exact_partition(costs, {.below = exact.solution->makespan + 1});
  EXPECT_EQ(again.solution->makespan, exact.solution->makespan);
  EXPECT_FALSE(exact_partition(costs, {.nodes = 3}).complete);
}

TEST(GraphExactTest, OneDeviceRunsAllInTurn) {
  for (const int vertices : {1, 6, 60}) {
    const OperatorGraph g = test::random_graph(7, {.vertices = vertices, .gpu_percent = 0});
    const GraphDevices d = test::devices_of({3});
    const GraphCosts costs(g, d);
    Ticks sum = 0;
    for (int v = 0; v < g.size(); ++v) sum += costs.execution(v, 0);
    const GraphBest best = best_partition(costs);
    EXPECT_EQ(best.solution.makespan, sum);
    EXPECT_EQ(best.lower_bound, sum);
  }
}

// Twice the bandwidth, or more memory, never makes it longer.
TEST(GraphExactTest, MoreNeverHurtsUnderTightMemory) {
  for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(test::rounds(8)); ++seed) {
    const OperatorGraph g =
        test::random_graph(seed, {.vertices = 9, .edge_percent = 12, .group_percent = 0, .gpu_percent = 0});
    GraphDevices d = test::random_devices(seed, 2);
    const std::int64_t total = std::accumulate(g.memory.begin(), g.memory.end(), std::int64_t{0});
    for (GraphDevice& device : d.devices) device.memory = total * 54 / 100;
    Ticks before = std::numeric_limits<Ticks>::max();
    for (int step = 0; step < 3; ++step) {
      const GraphCosts costs(g, d);
      const GraphBest best = best_partition(costs);
      if (best.reason.empty()) {
        EXPECT_LE(best.solution.makespan, before) << seed << " step " << step;
        before = best.solution.makespan;
      }
      for (std::int64_t& rate : d.rates) rate *= step == 0 ? 2 : 1;
      for (GraphDevice& device : d.devices) device.memory += step == 1 ? total / 10 : 0;
    }
  }
}

// Two devices that are full: no vertex can go anywhere unless another comes back.
TEST(GraphLocalSearchTest, WhatIsFullIsExchanged) {
  std::vector<GraphVertex> rows;
  for (int v = 0; v < 24; ++v) rows.push_back({.id = v, .operations = v % 2 == 0 ? 40 : 10, .memory = 10});
  const OperatorGraph g = build_graph(rows, "g");
  GraphDevices d = test::devices_of({4, 1});
  for (GraphDevice& device : d.devices) device.memory = 120;
  const GraphCosts costs(g, d);
  GraphSolution start{
      .assignment = Assignment(24), .order = g.order, .start = {}, .makespan = 480 * kTicksPerUnit};
  for (int v = 0; v < 24; ++v) start.assignment[v] = v % 2 == 0 ? 1 : 0;
  const GraphSolution found = improve(costs, start, {.seed = 1, .work = 200'000});
  EXPECT_EQ(found.makespan, 120 * kTicksPerUnit);  // all that need much are on the fast one
  EXPECT_EQ(check_assignment(costs, found.assignment), "");
}

}  // namespace
}  // namespace ostinato::graph
