// SPDX-License-Identifier: Apache-2.0
#include "search/graph/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "search/files/error.h"
#include "tests/search/graph/graph_small.h"

namespace ostinato::graph {
namespace {

using test::devices_of;
using test::random_devices;
using test::random_graph;

constexpr Ticks kUnit = kTicksPerUnit;

/// A simulation as one would do it by hand: from instant to instant, looking at every vertex and device. FIFO
/// takes what is ready longest, ties by the vertex that made it ready last, then by index.
Ticks slow_makespan(const GraphCosts& costs, const Assignment& where, bool fifo) {
  const OperatorGraph& g = costs.graph();
  const std::vector<Ticks> remaining = remaining_times(costs, where);
  std::vector<Ticks> start(g.size(), -1), end(g.size(), -1), free_at(costs.device_count(), 0);
  const auto ready_at = [&](int v) -> Ticks {
    Ticks at = 0;
    for (const int u : g.predecessors[v]) {
      if (end[u] < 0) return -1;
      at = std::max(at, end[u] + costs.transfer(u, where[u], where[v]));
    }
    return at;
  };
  std::set<Ticks> instants{0};
  for (int left = g.size(); left > 0;) {
    const Ticks now = *instants.begin();
    for (int d = 0; d < costs.device_count(); ++d) {
      if (free_at[d] > now) continue;
      int best = -1;
      for (int v = 0; v < g.size(); ++v) {
        if (start[v] >= 0 || where[v] != d || ready_at(v) < 0 || ready_at(v) > now) continue;
        if (best < 0 || (fifo ? ready_at(v) < ready_at(best) : remaining[v] > remaining[best])) best = v;
      }
      if (best < 0) continue;
      start[best] = now;
      end[best] = free_at[d] = now + costs.execution(best, d);
      --left;
      instants.insert(end[best]);
    }
    for (int v = 0; v < g.size(); ++v)
      if (start[v] < 0 && ready_at(v) > now) instants.insert(ready_at(v));
    // A vertex without duration may free its device at this very instant: look again before going on.
    const bool again =
        std::any_of(start.begin(), start.end(), [&](Ticks s) { return s == now; }) &&
        std::any_of(g.order.begin(), g.order.end(), [&](int v) {
          return start[v] < 0 && ready_at(v) >= 0 && ready_at(v) <= now && free_at[where[v]] <= now;
        });
    if (!again) instants.erase(now);
  }
  return *std::max_element(end.begin(), end.end());
}

Assignment random_assignment(const GraphCosts& costs, std::uint64_t seed) {
  Random random(seed);
  Assignment where(costs.graph().size());
  for (int g = 0; g < costs.graph().groups.rows(); ++g) {
    int d = random.below(costs.device_count());
    while (!costs.allowed(g, d)) d = random.below(costs.device_count());
    for (const int v : costs.graph().groups[g]) where[v] = d;
  }
  return where;
}

TEST(GraphSimulateTest, TransfersOverlapWithWorkAndGoOncePerDevice) {
  // 1 (10 operations) feeds 2 and 3 on the other device and 4 on its own.
  const OperatorGraph g = build_graph({{.id = 1, .before = {2, 3, 4}, .tensor = 20, .operations = 10},
                                       {.id = 2, .operations = 10},
                                       {.id = 3, .operations = 10},
                                       {.id = 4, .operations = 30}},
                                      "g");
  const GraphDevices d = devices_of({10, 5}, 10);
  const GraphTimeline t = simulate(GraphCosts(g, d), {0, 1, 1, 0}, GraphSchedule::fifo);
  EXPECT_EQ(t.start, (std::vector<Ticks>{0, 3 * kUnit, 5 * kUnit, 1 * kUnit}));
  EXPECT_EQ(t.makespan, 7 * kUnit);
  EXPECT_EQ(t.busy, (std::vector<Ticks>{4 * kUnit, 4 * kUnit}));
}

TEST(GraphSimulateTest, SendsThatAreOperationsTakeTenOfThem) {
  const OperatorGraph g =
      build_graph({{.id = 1, .before = {2}, .tensor = 20, .operations = 10}, {.id = 2}}, "g");
  const GraphDevices d = devices_of({10, 5}, 10);
  const GraphCosts costs(g, d);
  EXPECT_EQ(simulate(costs, {0, 1}, GraphSchedule::pct).makespan, 3 * kUnit);
  EXPECT_EQ(simulate(costs, {0, 1}, GraphSchedule::pct, GraphSends::operations).makespan, 4 * kUnit);
  EXPECT_EQ(remaining_times(costs, {0, 1}).front(), 3 * kUnit);
  EXPECT_EQ(remaining_times(costs, {0, 1}, GraphSends::operations).front(), 6 * kUnit);  // both ends count
}

TEST(GraphSimulateTest, StrategiesPickWhatTheirNamesSay) {
  // Ready at 0 on device 0: 1 (short, nothing follows), 2 (a long path follows), 3 (feeds the idle device 1).
  const OperatorGraph g = build_graph({{.id = 1, .operations = 10},
                                       {.id = 2, .before = {4}, .operations = 10},
                                       {.id = 3, .before = {5}, .operations = 10},
                                       {.id = 4, .operations = 100},
                                       {.id = 5, .operations = 10}},
                                      "g");
  const GraphDevices d = devices_of({10, 10}, 10);
  const GraphCosts costs(g, d);
  const Assignment where{0, 0, 0, 0, 1};
  EXPECT_EQ(simulate(costs, where, GraphSchedule::fifo).start[0], 0);
  EXPECT_EQ(simulate(costs, where, GraphSchedule::pct).start[1], 0);
  EXPECT_EQ(simulate(costs, where, GraphSchedule::msr).start[2], 0);
  EXPECT_EQ(simulate_ranked(costs, where, {2, 1, 0, 3, 4}).start[2], 0);
}

TEST(GraphSimulateTest, AgreesWithASlowSimulation) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const OperatorGraph g = random_graph(seed, {.vertices = 4 + static_cast<int>(seed % 12)});
    const GraphDevices d = random_devices(seed, 2 + static_cast<int>(seed % 3));
    const GraphCosts costs(g, d);
    const Assignment where = random_assignment(costs, seed);
    ASSERT_EQ(simulate(costs, where, GraphSchedule::pct).makespan, slow_makespan(costs, where, false))
        << seed;
  }
}

TEST(GraphSimulateTest, EveryTimelineIsValid) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const OperatorGraph g = random_graph(seed, {.vertices = 30, .edge_percent = 15});
    const GraphDevices d = random_devices(seed, 4);
    const GraphCosts costs(g, d);
    const Assignment where = random_assignment(costs, seed);
    for (const GraphSchedule s : {GraphSchedule::fifo, GraphSchedule::pct, GraphSchedule::msr}) {
      for (const GraphSends sends : {GraphSends::immediate, GraphSends::operations}) {
        const GraphTimeline t = simulate(costs, where, s, sends);
        ASSERT_EQ(check_timeline(costs, where, t.start), "") << seed << " " << to_string(s);
        const std::vector<Ticks> remaining = remaining_times(costs, where);
        EXPECT_GE(t.makespan, *std::max_element(remaining.begin(), remaining.end()));
        EXPECT_GE(t.makespan, *std::max_element(t.busy.begin(), t.busy.end()));
      }
    }
  }
}

TEST(GraphSimulateTest, TheCheckerSeesWhatIsWrong) {
  const OperatorGraph g = build_graph(
      {{.id = 1, .before = {2}, .tensor = 20, .operations = 10}, {.id = 2, .operations = 10}}, "g");
  const GraphDevices d = devices_of({10, 10}, 10);
  const GraphCosts costs(g, d);
  EXPECT_EQ(check_timeline(costs, {0, 1}, {0, 3 * kUnit}), "");
  EXPECT_EQ(check_timeline(costs, {0, 1}, {0, 3 * kUnit - 1}),
            "vertex 2 starts before the tensor of 1 arrives");
  EXPECT_EQ(check_timeline(costs, {0, 0}, {0, kUnit - 1}), "vertex 2 starts before the tensor of 1 arrives");
  EXPECT_EQ(check_timeline(costs, {0, 0}, {-1, kUnit}), "vertex 1 starts before 0");
  EXPECT_EQ(check_timeline(costs, {0, 0}, {0}), "not every vertex has a start");
  const OperatorGraph two = build_graph({{.id = 1, .operations = 10}, {.id = 2, .operations = 10}}, "g");
  const GraphCosts apart(two, d);
  EXPECT_EQ(check_timeline(apart, {0, 0}, {0, kUnit / 2}), "vertices 1 and 2 overlap on device 0");
}

TEST(GraphScheduleTest, WordsAreReadAndNearMissesSuggested) {
  EXPECT_EQ(parse_graph_schedule("msr"), GraphSchedule::msr);
  try {
    parse_graph_schedule("pctt");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "unknown schedule \"pctt\" (did you mean pct?); known are fifo, pct and msr");
  }
}

}  // namespace
}  // namespace ostinato::graph
