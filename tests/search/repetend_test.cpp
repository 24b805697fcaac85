#include "search/repetend.h"

#include <gtest/gtest.h>

#include "search/orders.h"
#include "search/shapes.h"
#include "tests/search/checked.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

Repetend repetend_of(const Placement& p, int unroll) {
  const Instance in(p);
  return find_repetend(in, Bounds(in), unroll, {});
}

TEST(Repetend, OneThatCoversThreeMicroBatchesBeatsThoseThatCoverOne) {
  // DESIGN's example: V, forward 1, backward 2, room for 3.
  const Placement p = shape("v", {.forward = 1, .backward = 2, .capacity = 3});
  EXPECT_EQ(repetend_of(p, 1).period, 6);
  EXPECT_EQ(repetend_of(p, 3).period, 12);
  const Instance in(p);
  EXPECT_EQ(Bounds(in).period(3), 12);
}

TEST(Repetend, ReachesTheBoundOfTesselsShapes) {
  for (const auto& [name, period] : {std::pair{"v", 4}, {"x", 8}, {"m", 6}, {"nn", 8}, {"k", 6}}) {
    const Placement p = shape(name, {.forward = 1, .backward = 3, .shard_forward = 1, .shard_backward = 1});
    EXPECT_EQ(repetend_of(p, 1).period, period) << name;
  }
}

/// Two steps of the repetition never meet on a device, and every input is there in time.
void expect_repeats(const Placement& p, const Repetend& r) {
  const Instance in(p);
  std::vector<ScheduledBlock> schedule;
  const int micro_batches = 20 * r.unroll;
  for (int m = 0; m < micro_batches; ++m) {
    for (int b = 0; b < in.blocks(); ++b) {
      const auto item = static_cast<std::size_t>(m % r.unroll * in.blocks() + b);
      schedule.push_back({b, m, r.start[item] + m / r.unroll * r.period});
    }
  }
  sort_schedule(p, schedule);
  Plan plan;
  plan.micro_batches = micro_batches;
  plan.schedule = schedule;
  plan.makespan = makespan_of(p, schedule);
  plan.span = span_of(p, schedule);
  plan.peak_memory = peak_memory(p, schedule);
  plan.placement_name = p.name;
  test::expect_holds(plan, p);
}

TEST(Repetend, RepeatsWithinTheMemory) {
  for (const Bytes room : {2, 3, 5}) {
    const Placement p = shape("v", {.forward = 3, .backward = 4, .weight = 2, .capacity = room});
    for (const int unroll : {1, 2, 3}) {
      const Repetend r = repetend_of(p, unroll);
      ASSERT_GT(r.period, 0);
      expect_repeats(p, r);
    }
  }
}

TEST(Repetend, CountsTransfers) {
  Placement p = test::on_devices(2, 1);
  p.link.latency = 5;
  test::add(p, "F0", {0}, 1, {.memory = 1});
  test::add(p, "F1", {1}, 1, {.memory = 1, .after = {0}});
  test::add(p, "B1", {1}, 1, {.memory = -1, .after = {1}});
  test::add(p, "B0", {0}, 1, {.memory = -1, .after = {2}});
  // Room for one on device 0: it is held for 1 + 5 + 2 + 5 + 1.
  const Repetend r = repetend_of(p, 1);
  EXPECT_EQ(r.period, 14);
  expect_repeats(p, r);
}

TEST(Repetend, NoneWhereNothingFits) {
  Placement p = test::on_devices(1, 1);
  test::add(p, "F", {0}, 1, {.memory = 2});
  test::add(p, "B", {0}, 1, {.memory = -2, .after = {0}});
  EXPECT_EQ(repetend_of(p, 1).period, 0);
}

}  // namespace
}  // namespace ostinato
