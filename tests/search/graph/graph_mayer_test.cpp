// SPDX-License-Identifier: Apache-2.0
// The results that the authors' own program gives on their files (5 runs; orders that the paper leaves open
// are random there). Only Batch Split with PCT has no such order: it must agree to the printed digit.
#include <gtest/gtest.h>

#include "search/graph/csv.h"
#include "search/graph/simulate.h"
#include "search/graph/strategies.h"
#include "tests/search/graph/graph_small.h"

namespace ostinato::graph {
namespace {

class MayerTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = test::mayer_data();
    if (folder_.empty())
      GTEST_SKIP() << "the files of Mayer et al. are not here (OSTINATO_DATA or ../shared/data)";
    devices_ = read_devices_csv(folder_ / "devices-50.csv");
  }

  OperatorGraph graph(const std::string& name) const { return read_graph_csv(folder_ / name); }

  /// As the authors' program does it, mean of `runs` seeds, in time units.
  static double published(const GraphCosts& costs, GraphStrategy strategy, GraphSchedule schedule, int runs) {
    double sum = 0;
    for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(runs); ++seed) {
      const GraphPartition p = partition(costs, strategy, {.seed = seed, .published_program = true});
      const GraphTimeline t =
          strategy == GraphStrategy::heft
              ? simulate_ranked(costs, p.assignment, p.planned, GraphSends::operations, seed)
              : simulate(costs, p.assignment, schedule, GraphSends::operations, seed);
      EXPECT_EQ(check_timeline(costs, p.assignment, t.start), "");
      sum += to_units(t.makespan);
    }
    return sum / runs;
  }

  static void expect_within(double value, double published, double percent) {
    EXPECT_NEAR(value, published, published * percent / 100);
  }

  std::filesystem::path folder_;
  GraphDevices devices_;
};

constexpr auto kFifo = GraphSchedule::fifo, kPct = GraphSchedule::pct, kMsr = GraphSchedule::msr;

TEST_F(MayerTest, TheFilesAreReadWhole) {
  const OperatorGraph g = graph("dynamic_rnn_graph.csv");
  EXPECT_EQ(g.size(), 5270);
  EXPECT_EQ(g.successors.values().size(), 9155u);
  std::int64_t operations = 0;
  for (const std::int64_t o : g.operations) operations += o;
  EXPECT_EQ(operations, 267045);
  EXPECT_EQ(devices_.size(), 50);
}

TEST_F(MayerTest, BatchSplitAgreesToTheDigit) {
  const struct {
    const char* file;
    double pct, msr;
  } rows[] = {{"convolutional_network_graph.csv", 182.5, 191.9},
              {"recurrent_network.csv", 3130.3, 3189.5},
              {"dynamic_rnn_graph.csv", 2949.9, 3098.4}};
  for (const auto& row : rows) {
    const OperatorGraph g = graph(row.file);
    const GraphCosts costs(g, devices_);
    EXPECT_NEAR(published(costs, GraphStrategy::batch_split, kPct, 1), row.pct, 0.05) << row.file;
    expect_within(published(costs, GraphStrategy::batch_split, kMsr, 1), row.msr, 0.1);
  }
}

TEST_F(MayerTest, TheOtherStrategiesAgreeOnTheRecurrentNetwork) {
  const OperatorGraph g = graph("recurrent_network.csv");
  const GraphCosts costs(g, devices_);
  expect_within(published(costs, GraphStrategy::batch_split, kFifo, 1), 3447.7, 1);
  expect_within(published(costs, GraphStrategy::critical_path, kFifo, 10), 2288.2, 3);
  expect_within(published(costs, GraphStrategy::critical_path, kPct, 10), 2111.9, 3);
  expect_within(published(costs, GraphStrategy::critical_path, kMsr, 10), 2127.6, 3);
  expect_within(published(costs, GraphStrategy::mite, kPct, 10), 2093.4, 3);
  expect_within(published(costs, GraphStrategy::dfs, kPct, 10), 2297.4, 3);
  expect_within(published(costs, GraphStrategy::heft, kFifo, 1), 3555.5, 3);
  expect_within(published(costs, GraphStrategy::hash, kPct, 5), 4732.5, 3);
}

TEST_F(MayerTest, WhatASetOrdersAgreesOnTheDynamicNetwork) {
  const OperatorGraph g = graph("dynamic_rnn_graph.csv");
  const GraphCosts costs(g, devices_);
  expect_within(published(costs, GraphStrategy::heft, kFifo, 5), 3521.1, 2);
  expect_within(published(costs, GraphStrategy::mite, kPct, 5), 2218.7, 2);
}

}  // namespace
}  // namespace ostinato::graph
