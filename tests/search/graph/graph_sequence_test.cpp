// SPDX-License-Identifier: Apache-2.0
#include "search/graph/sequence.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "search/graph/simulate.h"
#include "tests/search/graph/graph_small.h"

namespace ostinato::graph {
namespace {

using test::devices_of;
using test::random_devices;
using test::random_graph;

Assignment first_allowed(const GraphCosts& costs) {
  Assignment where(costs.graph().size());
  for (int v = 0; v < costs.graph().size(); ++v) where[v] = costs.fastest(costs.graph().group[v]);
  return where;
}

/// A random change that the graph and the kinds allow; no moves: none.
GraphChange random_change(const GraphCosts& costs, const GraphSequence& s, Random& random) {
  const OperatorGraph& g = costs.graph();
  const int v = random.below(g.size());
  const int first = s.earliest_position(v), last = s.latest_position(v);
  GraphChange change;
  const auto add = [&](int group, int device) {
    if (!costs.allowed(group, device)) return;
    for (const int x : g.groups[group]) change.moves.push_back({x, device});
  };
  const int device = random.below(costs.device_count());
  add(g.group[v], device);
  const int other = random.below(g.size());
  if (random.below(2) == 0 && g.groups[g.group[v]].size() == 1)
    change.position = first + random.below(last - first + 1);
  else if (g.group[other] != g.group[v] && s.device(other) == device)
    add(g.group[other], s.device(v));  // they change places
  std::sort(change.moves.begin(), change.moves.end(), [&](const GraphMove& a, const GraphMove& b) {
    return s.position(a.vertex) < s.position(b.vertex);
  });
  return change;
}

/// By changing nothing about it.
Ticks longest_through(GraphSequence& s, int v) {
  return s.longest_path({.moves = {{v, s.device(v)}}, .position = -1}, kTicksPerUnit * 1'000'000);
}

TEST(GraphSequenceTest, AChainOverTwoDevices) {
  const OperatorGraph g = build_graph({{.id = 1, .before = {2}, .tensor = 20, .operations = 10},
                                       {.id = 2, .operations = 10},
                                       {.id = 3, .operations = 30}},
                                      "g");
  const GraphDevices d = devices_of({10, 10}, 10);
  const GraphCosts costs(g, d);
  GraphSequence s(costs, {0, 1, 0}, {0, 1, 2});
  EXPECT_EQ(s.starts(), (std::vector<Ticks>{0, 3 * kTicksPerUnit, kTicksPerUnit}));
  EXPECT_EQ(s.makespan(), 4 * kTicksPerUnit);
  const GraphChange home{.moves = {{1, 0}}, .position = -1};
  EXPECT_EQ(s.longest_path(home, 100 * kTicksPerUnit), 5 * kTicksPerUnit);  // one after the other
  const GraphChange away{.moves = {{2, 1}}, .position = 1};
  EXPECT_EQ(s.longest_path(away, 100 * kTicksPerUnit), 4 * kTicksPerUnit);
  s.apply(away);
  EXPECT_EQ(s.order(), (std::vector<int>{0, 2, 1}));
  EXPECT_EQ(s.starts(), (std::vector<Ticks>{0, 3 * kTicksPerUnit, 0}));
  EXPECT_EQ(s.critical_path().back(), 1);
}

// Whatever is changed, the sequence is what a new one would be, a valid timeline, and as long as was
// foretold.
TEST(GraphSequenceTest, ChangesKeepItExact) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const OperatorGraph g = random_graph(seed, {.vertices = 24, .edge_percent = 14, .group_percent = 12});
    const GraphDevices d = random_devices(seed, 4);
    const GraphCosts costs(g, d);
    GraphSequence s(costs, first_allowed(costs), g.order);
    Random random(seed);
    for (int step = 0; step < 60; ++step) {
      const GraphChange change = random_change(costs, s, random);
      if (change.moves.empty()) continue;
      const Ticks before = s.makespan(), foretold = s.longest_path(change, kTicksPerUnit * 1'000'000);
      EXPECT_GT(s.longest_path(change, foretold - 1), foretold - 1);  // a limit only cuts
      s.apply(change);
      ASSERT_GE(s.makespan(), foretold) << seed << " step " << step;
      ASSERT_LE(s.makespan(), std::max(before, foretold)) << seed << " step " << step;
      GraphSequence fresh(costs, s.assignment(), s.order());
      ASSERT_EQ(s.starts(), fresh.starts()) << seed << " step " << step;
      ASSERT_EQ(s.makespan(), fresh.makespan());
      ASSERT_EQ(check_timeline(costs, s.assignment(), s.starts()), "");
      for (int v = 0; v < g.size(); ++v)
        ASSERT_EQ(longest_through(s, v), longest_through(fresh, v)) << seed << " step " << step;
    }
  }
}

// A part changes by itself; seen as a whole again, the sequence is what a new one would be.
TEST(GraphSequenceTest, AScopeLeavesTheRestForLater) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const OperatorGraph g = random_graph(seed, {.vertices = 30, .edge_percent = 10, .group_percent = 8});
    const GraphDevices d = random_devices(seed, 4);
    const GraphCosts costs(g, d);
    GraphSequence s(costs, first_allowed(costs), g.order);
    Random random(seed);
    int changed = 0;
    for (int step = 0; step < 200; ++step) {
      if (step % 20 == 0) {
        const int first = random.below(g.size());
        s.set_scope(first, std::min(g.size() - 1, first + 8));
      }
      const GraphChange change = random_change(costs, s, random);
      if (change.moves.empty() || !s.in_scope(change)) continue;
      const Ticks foretold = s.longest_path(change, kTicksPerUnit * 1'000'000);
      s.apply(change);
      ++changed;
      ASSERT_GE(s.makespan(), foretold) << seed << " step " << step;
      ASSERT_GE(GraphSequence(costs, s.assignment(), s.order()).makespan(), s.makespan());
      for (const int v : s.critical_path()) ASSERT_EQ(longest_through(s, v), s.makespan());
    }
    EXPECT_GT(changed, 5) << seed;
    s.set_scope(0, g.size() - 1);
    const GraphSequence fresh(costs, s.assignment(), s.order());
    ASSERT_EQ(s.starts(), fresh.starts()) << seed;
    ASSERT_EQ(s.makespan(), fresh.makespan());
    ASSERT_EQ(s.critical_path(), fresh.critical_path());
  }
}

TEST(GraphSequenceTest, TheCriticalPathHasTheLengthOfTheSchedule) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const OperatorGraph g = random_graph(seed, {.vertices = 30, .edge_percent = 14});
    const GraphDevices d = random_devices(seed, 3);
    const GraphCosts costs(g, d);
    GraphSequence s(costs, first_allowed(costs), g.order);
    const std::vector<int> path = s.critical_path();
    ASSERT_FALSE(path.empty());
    EXPECT_EQ(s.starts()[path.front()], 0);
    for (const int v : path) EXPECT_EQ(longest_through(s, v), s.makespan());
    EXPECT_EQ(s.starts()[path.back()] + costs.execution(path.back(), s.device(path.back())), s.makespan());
  }
}

TEST(GraphSequenceTest, MemoryIsCounted) {
  const OperatorGraph g = build_graph({{.id = 1, .memory = 6}, {.id = 2, .memory = 6}}, "g");
  const GraphDevices d = devices_of({1, 1}, 10, "", 10);
  const GraphCosts costs(g, d);
  GraphSequence s(costs, {0, 1}, {0, 1});
  EXPECT_EQ(s.over({.moves = {{1, 0}}}, 0), 2);
  EXPECT_EQ(s.over({.moves = {{1, 1}}}, 1), 0);
  EXPECT_EQ(s.over({.moves = {{0, 1}}}, 1), 2);
  EXPECT_EQ(s.over({.moves = {{0, 1}, {1, 0}}}, 0), 0);  // they change places
  EXPECT_EQ(s.over({.moves = {{0, 1}, {1, 0}}}, 1), 0);
}

}  // namespace
}  // namespace ostinato::graph
