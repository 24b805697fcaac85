// SPDX-License-Identifier: Apache-2.0
#include "search/graph/best.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "search/graph/bound.h"
#include "search/graph/csv.h"
#include "search/graph/exact.h"
#include "search/graph/simulate.h"
#include "search/graph/strategies.h"
#include "tests/search/every_schedule.h"
#include "tests/search/graph/graph_small.h"
#include "tests/search/rounds.h"

namespace ostinato::graph {
namespace {

using test::devices_of;
using test::least_makespan;
using test::random_devices;
using test::random_graph;

TEST(GraphBestTest, FindsTheOptimumOfSmallGraphs) {
  int met = 0, total = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const OperatorGraph g = random_graph(seed, {.vertices = 6});
    const GraphDevices d = random_devices(seed, 2 + static_cast<int>(seed % 2));
    const GraphCosts costs(g, d);
    const Ticks shortest = least_makespan(costs);
    const GraphBest best = best_partition(costs, {.work = 20'000});
    ASSERT_LE(best.lower_bound, shortest) << seed;
    ASSERT_GE(best.solution.makespan, shortest) << seed;
    met += best.solution.makespan == shortest;
    ++total;
  }
  EXPECT_GE(met, total * 9 / 10) << met << " of " << total;
}

TEST(GraphBestTest, NeverWorseThanAnyStrategyAndAlwaysValid) {
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    const OperatorGraph g = random_graph(seed, {.vertices = 30, .edge_percent = 12});
    GraphDevices d = random_devices(seed, 4);
    std::int64_t total = 0;
    for (const std::int64_t m : g.memory) total += m;
    for (GraphDevice& device : d.devices) device.memory = total * 3 / 4;
    const GraphCosts costs(g, d);
    const GraphBest best = best_partition(costs, {.work = 5'000});
    if (!best.reason.empty()) continue;
    EXPECT_EQ(check_assignment(costs, best.solution.assignment), "") << seed;
    EXPECT_EQ(check_timeline(costs, best.solution.assignment, best.solution.start), "") << seed;
    EXPECT_LE(best.lower_bound, best.solution.makespan);
    EXPECT_EQ(best.lower_bound, graph_lower_bound(costs));
    EXPECT_GE(best.lower_bound, simple_graph_bound(costs));
    Ticks last = 0;
    for (int v = 0; v < g.size(); ++v)
      last = std::max(last, best.solution.start[v] + costs.execution(v, best.solution.assignment[v]));
    EXPECT_EQ(last, best.solution.makespan);
    for (const GraphStrategy s : kGraphStrategies) {
      const GraphPartition p = partition(costs, s);
      if (!p.reason.empty()) continue;
      for (const GraphSchedule schedule : {GraphSchedule::fifo, GraphSchedule::pct, GraphSchedule::msr})
        EXPECT_LE(best.solution.makespan, simulate(costs, p.assignment, schedule).makespan) << to_string(s);
    }
  }
}

TEST(GraphBestTest, TheSameSeedGivesTheSameAtAnyNumberOfThreads) {
  const OperatorGraph g = random_graph(5, {.vertices = 60, .edge_percent = 6});
  const GraphDevices d = random_devices(5, 6);
  const GraphCosts costs(g, d);
  const GraphBest one = best_partition(costs, {.seed = 3, .runs = 3, .work = 50'000, .threads = 1});
  const GraphBest three = best_partition(costs, {.seed = 3, .runs = 3, .work = 50'000, .threads = 3});
  EXPECT_EQ(one.solution.assignment, three.solution.assignment);
  EXPECT_EQ(one.solution.start, three.solution.start);
  EXPECT_FALSE(one.cut_by_limit);
}

TEST(GraphBestTest, AnInterruptStillLeavesASolution) {
  const OperatorGraph g = random_graph(5, {.vertices = 60, .edge_percent = 6});
  const GraphDevices d = random_devices(5, 6);
  const GraphCosts costs(g, d);
  const GraphBest best = best_partition(costs, {.interrupted = [] { return true; }});
  EXPECT_TRUE(best.cut_by_limit);
  EXPECT_EQ(check_timeline(costs, best.solution.assignment, best.solution.start), "");
}

TEST(GraphBestTest, WithoutAnyAssignmentThereIsAReason) {
  const OperatorGraph g = build_graph({{.id = 1, .memory = 6}, {.id = 2, .memory = 6}}, "g");
  const GraphDevices d = devices_of({1}, 10, "", 10);
  EXPECT_EQ(best_partition(GraphCosts(g, d)).reason,
            "no device has the memory that is left for vertex 2 and its group: 6");
}

// More bandwidth never makes the optimum longer; on graphs this small the search finds it.
TEST(GraphBestTest, MoreBandwidthDoesNotHurt) {
  for (std::uint64_t seed = 1; seed <= 15; ++seed) {
    const OperatorGraph g = random_graph(seed, {.vertices = 5});
    GraphDevices d = random_devices(seed, 2);
    const Ticks slow = least_makespan(GraphCosts(g, d));
    for (std::int64_t& rate : d.rates) rate *= 3;
    const GraphCosts faster(g, d);
    EXPECT_LE(least_makespan(faster), slow);
    EXPECT_LE(best_partition(faster, {.work = 20'000}).solution.makespan, slow) << seed;
  }
}

TEST(GraphBoundTest, JoinsCountWhatCannotBeBothHereAndAway) {
  // Two inputs of 1 unit each and tensors of 3: together they take 2 before the third, apart 1 + 3.
  const OperatorGraph g = build_graph({{.id = 1, .before = {3}, .tensor = 30, .operations = 10},
                                       {.id = 2, .before = {3}, .tensor = 30, .operations = 10},
                                       {.id = 3, .operations = 10}},
                                      "g");
  const GraphDevices d = devices_of({10, 10}, 10);
  EXPECT_EQ(graph_lower_bound(GraphCosts(g, d)), 3 * kTicksPerUnit);
  EXPECT_EQ(simple_graph_bound(GraphCosts(g, d)), 2 * kTicksPerUnit);
}

TEST(GraphBoundTest, WhatMustGatherOnOneDeviceRunsInTurn) {
  // Three branches of two vertices, 1 unit each, and tensors that take 4: apart they take 1 + 4 + 1 at least.
  // On one device the six run before the last, which only a look at both levels at once sees.
  std::vector<GraphVertex> rows = {{.id = 7, .operations = 10}};
  for (const int b : {1, 3, 5}) {
    rows.push_back({.id = b, .before = {b + 1}, .tensor = 40, .operations = 10});
    rows.push_back({.id = b + 1, .before = {7}, .tensor = 40, .operations = 10});
  }
  const OperatorGraph g = build_graph(rows, "g");
  const GraphDevices d = devices_of({10, 10, 10}, 10);
  EXPECT_EQ(graph_lower_bound(GraphCosts(g, d)), 7 * kTicksPerUnit);
  EXPECT_EQ(least_makespan(GraphCosts(g, d)), 7 * kTicksPerUnit);
}

TEST(GraphBoundTest, OfOneGroupWhatIsBeforeIsHere) {
  // 1 and 4 share a device; 2 and 3 lie between them, and go where they like.
  const OperatorGraph g =
      build_graph({{.id = 1, .before = {2, 3, 4}, .together = {4}, .tensor = 10, .operations = 30},
                   {.id = 2, .before = {4}, .tensor = 10, .operations = 10},
                   {.id = 3, .before = {4}, .tensor = 10, .operations = 10},
                   {.id = 4, .operations = 30}},
                  "g");
  const GraphDevices d = devices_of({10, 10}, 10);
  const Ticks bound = graph_lower_bound(GraphCosts(g, d));
  EXPECT_LE(bound, least_makespan(GraphCosts(g, d)));
  EXPECT_EQ(bound, 8 * kTicksPerUnit);
}

TEST(GraphBoundTest, WorkIsBoundBetweenTheEndsOfForwardsAndOfBackwards) {
  // A first vertex, four branches, a loss, four branches back and a last vertex. On two devices one of them
  // waits four times: at the first vertex, before and behind the loss, and at the last.
  std::vector<GraphVertex> rows = {
      {.id = 0, .operations = 10}, {.id = 5, .operations = 10}, {.id = 10, .operations = 10}};
  for (const int b : {1, 2, 3, 4}) {
    rows.push_back({.id = b, .before = {5}, .after = {0}, .operations = 20});
    rows.push_back({.id = b + 5, .before = {10}, .after = {5}, .operations = 20});
  }
  const OperatorGraph g = build_graph(rows, "g");
  const GraphDevices two = devices_of({10, 10}, kMaxGraphNumber), unlike = devices_of({10, 20}, 10);
  EXPECT_EQ(simple_graph_bound(GraphCosts(g, two)), 19 * kTicksPerUnit / 2);
  EXPECT_EQ(graph_lower_bound(GraphCosts(g, two)), 11 * kTicksPerUnit);
  EXPECT_EQ(least_makespan(GraphCosts(g, two)), 11 * kTicksPerUnit);
  // All on the fast device takes 9.5, and with both 0.5 + 8 / 3 + 0.5 + 8 / 3 + 0.5 were possible by work.
  EXPECT_EQ(graph_lower_bound(GraphCosts(g, unlike)), (41 * kTicksPerUnit + 5) / 6);
  EXPECT_EQ(least_makespan(GraphCosts(g, unlike)), 15 * kTicksPerUnit / 2);
}

/// With transfers that pay, or nearly.
GraphDevices quick_links(std::uint64_t seed, int count) {
  GraphDevices d = random_devices(seed, count);
  for (std::int64_t& rate : d.rates) rate *= seed % 2 == 0 ? 3 : 8;
  return d;
}

OperatorGraph forked_graph(std::uint64_t seed, int vertices) {
  return random_graph(seed, {.vertices = vertices,
                             .edge_percent = static_cast<int>(20 + seed % 4 * 10),
                             .group_percent = static_cast<int>(seed % 3 * 15)});
}

// Were what is best for one input of a join free to use devices against what is best for another, 12.742
// units would be enough.
TEST(GraphBoundTest, WhatPrecedesAJoinIsSeenTogether) {
  const OperatorGraph g = forked_graph(62, 10);
  const GraphDevices d = quick_links(62, 4);
  const GraphCosts costs(g, d);
  const ExactPartition exact = exact_partition(costs);
  ASSERT_TRUE(exact.complete && exact.solution);
  EXPECT_GE(graph_lower_bound(costs), 15'500'000'000);
  EXPECT_LE(graph_lower_bound(costs), exact.solution->makespan);
}

// Larger than what every schedule can be tried of; graph_exact_test.cpp compares exhaustion with that.
TEST(GraphBoundTest, IsBelowWhatExhaustionFinds) {
  int compared = 0, met = 0;
  for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(test::rounds(1000)); ++seed) {
    const OperatorGraph g = forked_graph(seed, 8 + static_cast<int>(seed % 4));
    const GraphDevices d = quick_links(seed, 2 + static_cast<int>(seed % 3));
    const GraphCosts costs(g, d);
    const ExactPartition exact = exact_partition(costs, {.nodes = 20'000});
    if (!exact.complete) continue;
    ++compared;
    const Ticks bound = graph_lower_bound(costs);
    ASSERT_LE(bound, exact.solution->makespan) << seed;
    met += bound == exact.solution->makespan ? 1 : 0;
  }
  EXPECT_GE(compared, 900);
  EXPECT_GE(met, 300);
}

// Branches side by side, tensors large and small, and ids in any order.
TEST(GraphBoundTest, IsBelowTheOptimumWhateverForks) {
  for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(test::rounds(120)); ++seed) {
    const test::RandomGraphOptions shape{.vertices = seed % 3 == 0 ? 6 : 7,
                                         .edge_percent = static_cast<int>(25 + seed % 5 * 10),
                                         .group_percent = static_cast<int>(seed % 4 * 15),
                                         .shuffled_ids = true};
    const OperatorGraph g = random_graph(seed, shape);
    GraphDevices d = random_devices(seed, seed % 3 == 0 ? 3 : 2);
    if (seed % 2 == 0)  // transfers that pay
      for (std::int64_t& rate : d.rates) rate *= 8;
    const GraphCosts costs(g, d);
    ASSERT_LE(graph_lower_bound(costs), least_makespan(costs)) << seed;
  }
}

TEST(GraphBoundTest, IsBelowTheOptimumOfEveryKindOfGraph) {
  int tight = 0;
  for (std::uint64_t seed = 100; seed < 160; ++seed) {
    const test::RandomGraphOptions shape{.vertices = 7,
                                         .edge_percent = static_cast<int>(20 + seed % 4 * 15),
                                         .group_percent = static_cast<int>(seed % 3 * 30)};
    const OperatorGraph g = random_graph(seed, shape);
    const GraphDevices d = random_devices(seed, 2);
    const GraphCosts costs(g, d);
    const Ticks bound = graph_lower_bound(costs), shortest = least_makespan(costs);
    ASSERT_LE(bound, shortest) << seed;
    tight += bound == shortest ? 1 : 0;
  }
  EXPECT_GE(tight, 20);
}

TEST(GraphBoundTest, ThatIsStoppedIsWhatWasProvedUntilThen) {
  // Eight between a fork and a join, and tensors that take longer than all of them: they stay together.
  std::vector<GraphVertex> rows = {{.id = 0, .tensor = 999, .operations = 10}};
  for (int middle = 1; middle <= 8; ++middle) {
    rows[0].before.push_back(middle);
    rows.push_back({.id = middle, .before = {9}, .tensor = 999, .operations = 10});
  }
  rows.push_back({.id = 9, .operations = 10});
  const OperatorGraph g = build_graph(rows, "g");
  const GraphDevices d = devices_of({10, 10, 10}, 10);
  const GraphCosts costs(g, d);
  int asked = 0;
  const Ticks whole = graph_lower_bound(costs, [&] { return ++asked < 0; });
  EXPECT_EQ(whole, graph_lower_bound(costs));
  const int all = asked;
  Ticks last = simple_graph_bound(costs);
  ASSERT_LT(last, whole);
  for (int after = 0; after <= all; ++after) {
    asked = 0;
    const Ticks bound = graph_lower_bound(costs, [&] { return ++asked > after; });
    EXPECT_GE(bound, last) << "what was proved before is lost after " << after;
    EXPECT_LE(bound, whole);
    EXPECT_LE(asked, after + 6) << "every pass ends where it is stopped";
    last = bound;
  }
}

TEST(GraphBoundTest, KindsForceTransfersAndGroupsForceSequences) {
  const OperatorGraph kinds =
      build_graph({{.id = 1, .before = {2}, .tensor = 30, .operations = 10, .kind = "CPU"},
                   {.id = 2, .operations = 10, .kind = "GPU"}},
                  "g");
  const GraphDevices two = devices_of({10, 10}, 10, "CG");
  EXPECT_EQ(graph_lower_bound(GraphCosts(kinds, two)), 5 * kTicksPerUnit);
  const OperatorGraph group = build_graph({{.id = 1, .operations = 10},
                                           {.id = 2, .together = {1}, .operations = 10},
                                           {.id = 3, .together = {1}, .operations = 10}},
                                          "g");
  EXPECT_EQ(graph_lower_bound(GraphCosts(group, two)), 3 * kTicksPerUnit);
}

// The work is counted, so this takes about as long everywhere (a few seconds on a slow machine).
TEST(GraphBestTest, GoesBeyondThePublishedResults) {
  const std::filesystem::path folder = test::mayer_data();
  if (folder.empty())
    GTEST_SKIP() << "the files of Mayer et al. are not here (OSTINATO_DATA or ../shared/data)";
  const GraphDevices devices = read_devices_csv(folder / "devices-50.csv");
  const struct {
    const char* file;
    double reach, bound;
  } rows[] = {{"convolutional_network_graph.csv", 57, 53},
              {"recurrent_network.csv", 920, 817},
              {"dynamic_rnn_graph.csv", 990, 837}};
  for (const auto& row : rows) {
    const OperatorGraph g = read_graph_csv(folder / row.file);
    const GraphCosts costs(g, devices);
    const GraphBest best = best_partition(costs, {.work = 5'000'000});
    EXPECT_LE(to_units(best.solution.makespan), row.reach) << row.file;
    EXPECT_GE(to_units(best.lower_bound), row.bound) << row.file;
    EXPECT_EQ(check_assignment(costs, best.solution.assignment), "");
    EXPECT_EQ(check_timeline(costs, best.solution.assignment, best.solution.start), "");
  }
}

}  // namespace
}  // namespace ostinato::graph
