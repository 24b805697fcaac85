// SPDX-License-Identifier: Apache-2.0
#include "search/graph/strategies.h"

#include <gtest/gtest.h>

#include <set>

#include "search/files/error.h"
#include "search/graph/rank.h"
#include "search/graph/simulate.h"
#include "tests/search/graph/graph_small.h"

namespace ostinato::graph {
namespace {

using test::devices_of;
using test::random_devices;
using test::random_graph;

Assignment assign(const OperatorGraph& g, const GraphDevices& d, GraphStrategy s, StrategyOptions o = {}) {
  return partition(GraphCosts(g, d), s, o).assignment;
}

/// A chain of `length` vertices of 10 operations and tensors of 10, and `loose` vertices beside it.
OperatorGraph chain_and_loose(int length, int loose) {
  std::vector<GraphVertex> rows;
  for (int v = 1; v <= length + loose; ++v) {
    GraphVertex row{.id = v, .tensor = 10, .operations = 10};
    if (v > 1 && v <= length) row.after = {v - 1};
    rows.push_back(row);
  }
  return build_graph(std::move(rows), "g");
}

TEST(GraphRankTest, PathsThroughADiamond) {
  const OperatorGraph g = build_graph({{.id = 1, .before = {2, 3}, .tensor = 4, .operations = 10},
                                       {.id = 2, .before = {4}, .tensor = 6, .operations = 20},
                                       {.id = 3, .before = {4}, .tensor = 100, .operations = 5},
                                       {.id = 4, .operations = 1}},
                                      "g");
  EXPECT_EQ(path_operations(g), (std::vector<std::int64_t>{31, 31, 16, 31}));
  const GraphDevices d = devices_of({1, 3}, 2);  // mean speed 2, mean rate 2
  const std::vector<Ticks> up = upward_ranks(GraphCosts(g, d));
  EXPECT_EQ(up[3], kTicksPerUnit / 2);
  EXPECT_EQ(up[2], kTicksPerUnit * 53);
  EXPECT_EQ(up[1], kTicksPerUnit * 27 / 2);
  EXPECT_EQ(up[0], kTicksPerUnit * 60);
  EXPECT_EQ(critical_path(g, up), (std::vector<int>{0, 2, 3}));
}

TEST(GraphStrategiesTest, HashGoesInTurnAndSkipsWhatDoesNotFit) {
  EXPECT_EQ(assign(chain_and_loose(1, 4), devices_of({1, 1, 1}), GraphStrategy::hash),
            (Assignment{0, 1, 2, 0, 1}));
  const OperatorGraph gpu = build_graph({{.id = 1, .kind = "GPU"}, {.id = 2}, {.id = 3, .kind = "GPU"}}, "g");
  EXPECT_EQ(assign(gpu, devices_of({1, 1, 1}, 10, "CCG"), GraphStrategy::hash), (Assignment{2, 1, 2}));
}

TEST(GraphStrategiesTest, BatchSplitGivesTheLongestPathTheFastestDevice) {
  // The chain of 3 is more important than the 3 loose ones.
  const OperatorGraph g = chain_and_loose(3, 3);
  EXPECT_EQ(assign(g, devices_of({5, 10}), GraphStrategy::batch_split), (Assignment{1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(assign(g, devices_of({5, 10}), GraphStrategy::batch_split, {.published_program = true}),
            (Assignment{0, 0, 0, 1, 1, 1}));
}

TEST(GraphStrategiesTest, CriticalPathStaysTogetherAndTheRestBalances) {
  const Assignment a = assign(chain_and_loose(3, 4), devices_of({10, 5, 40}), GraphStrategy::critical_path);
  EXPECT_EQ(a, (Assignment{2, 2, 2, 0, 1, 2, 0}));  // loads 0, 0, 0.75; 1, 0, 0.75; 1, 2, 0.75; 1, 2, 1
  // Where the fastest is too small the second is next; the published program goes on to the third.
  GraphDevices small = devices_of({10, 5, 40});
  small.devices[2].memory = 0;
  EXPECT_EQ(assign(chain_and_loose(2, 0), small, GraphStrategy::critical_path), (Assignment{0, 0}));
  EXPECT_EQ(assign(chain_and_loose(2, 0), small, GraphStrategy::critical_path, {.published_program = true}),
            (Assignment{1, 1}));
}

TEST(GraphStrategiesTest, MiteSpreadsWhatIsLooseAndDfsKeepsAChain) {
  const Assignment loose = assign(chain_and_loose(1, 3), devices_of({10, 10}), GraphStrategy::mite);
  EXPECT_EQ(std::set<int>(loose.begin(), loose.end()).size(), 2u);
  // Depth first: no traffic on the device of the predecessor outweighs its load.
  EXPECT_EQ(assign(chain_and_loose(4, 0), devices_of({10, 10}), GraphStrategy::dfs),
            (Assignment{0, 0, 0, 0}));
}

TEST(GraphStrategiesTest, HeftFinishesEachVertexEarliestAndFillsGaps) {
  // The chain stays (transfers cost 1 each way, work 1); the loose ones finish first on the other device.
  const OperatorGraph g = chain_and_loose(3, 2);
  const GraphDevices d = devices_of({10, 10}, 10);
  const GraphCosts costs(g, d);
  const GraphPartition p = partition(costs, GraphStrategy::heft);
  EXPECT_EQ(p.assignment, (Assignment{0, 0, 0, 1, 1}));
  EXPECT_EQ(simulate_ranked(costs, p.assignment, p.planned).makespan, 3 * kTicksPerUnit);
  // A gap: 1 -> 2 across kinds leaves device 0 idle from 1 to 12, and the loose vertex fits in.
  const OperatorGraph gap =
      build_graph({{.id = 1, .before = {2}, .tensor = 50, .operations = 10, .kind = "CPU"},
                   {.id = 2, .before = {3}, .tensor = 50, .operations = 10, .kind = "GPU"},
                   {.id = 3, .operations = 10, .kind = "CPU"},
                   {.id = 4, .operations = 10, .kind = "CPU"}},
                  "g");
  const GraphDevices two = devices_of({10, 10}, 10, "CG");
  EXPECT_EQ(
      partition(GraphCosts(gap, two), GraphStrategy::heft).planned,
      (std::vector<Ticks>{1 * kTicksPerUnit, 7 * kTicksPerUnit, 13 * kTicksPerUnit, 2 * kTicksPerUnit}));
}

TEST(GraphStrategiesTest, HeftOnSomeDevicesLeavesTheOthersAlone) {
  const OperatorGraph g =
      build_graph({{.id = 1, .operations = 9}, {.id = 2, .operations = 9, .kind = "GPU"}}, "g");
  const GraphDevices d = devices_of({90, 1, 1}, 10, "CCG");
  const GraphCosts costs(g, d);
  EXPECT_EQ(partition_heft(costs, {0, 1, 0}).assignment, (Assignment{1, 2}));
}

TEST(GraphStrategiesTest, EveryStrategyKeepsGroupsKindsAndMemory) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const OperatorGraph g = random_graph(seed, {.vertices = 25, .edge_percent = 12});
    GraphDevices d = random_devices(seed, 5);
    std::int64_t total = 0;
    for (const std::int64_t m : g.memory) total += m;
    for (GraphDevice& device : d.devices) device.memory = total * 2 / 3;
    const GraphCosts costs(g, d);
    for (const GraphStrategy s : kGraphStrategies) {
      for (const bool published : {false, true}) {
        const GraphPartition p = partition(costs, s, {.seed = seed % 3, .published_program = published});
        if (!p.reason.empty()) {
          EXPECT_TRUE(p.assignment.empty());
          continue;
        }
        ASSERT_EQ(check_assignment(costs, p.assignment), "") << to_string(s) << " seed " << seed;
        EXPECT_EQ(partition(costs, s, {.seed = seed % 3, .published_program = published}).assignment,
                  p.assignment);
      }
    }
  }
}

TEST(GraphStrategiesTest, RunningOutOfMemoryIsAReasonAndNotAnAssignment) {
  // Two vertices of 6 and one device of 10, though each fits alone.
  const OperatorGraph g = build_graph({{.id = 1, .memory = 6}, {.id = 2, .memory = 6}}, "g");
  const GraphDevices d = devices_of({1}, 10, "", 10);
  for (const GraphStrategy s : kGraphStrategies) {
    const GraphPartition p = partition(GraphCosts(g, d), s);
    EXPECT_EQ(p.reason, "no device has the memory that is left for vertex 2 and its group: 6")
        << to_string(s);
    EXPECT_TRUE(p.assignment.empty());
  }
}

TEST(GraphStrategiesTest, OtherSeedsTakeOtherOrders) {
  const OperatorGraph g = random_graph(3, {.vertices = 40, .group_percent = 0});
  const GraphDevices d = random_devices(3, 5);
  for (const GraphStrategy s : {GraphStrategy::hash, GraphStrategy::critical_path, GraphStrategy::mite})
    EXPECT_NE(assign(g, d, s, {.seed = 1}), assign(g, d, s, {.seed = 2})) << to_string(s);
}

TEST(GraphStrategiesTest, WordsAreReadAndNearMissesSuggested) {
  for (const GraphStrategy s : kGraphStrategies) EXPECT_EQ(parse_graph_strategy(to_string(s)), s);
  try {
    parse_graph_strategy("heff");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "unknown strategy \"heff\" (did you mean heft?); known are hash, batch-split, "
                 "critical-path, mite, dfs, heft and best");
  }
}

}  // namespace
}  // namespace ostinato::graph
