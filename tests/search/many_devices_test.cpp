// Plans close to the bound on more devices than a search over whole schedules can look at.

#include <gtest/gtest.h>

#include "search/dispatch.h"
#include "search/incumbent.h"
#include "search/phases.h"
#include "search/shapes.h"
#include "tests/search/checked.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

/// Tessel's times: forward 1, backward 3, shards 1 and 1.
Placement tessel(const std::string& name, int devices, Bytes capacity = kUnlimited) {
  return shape(name, {.devices = devices,
                      .forward = 1,
                      .backward = 3,
                      .shard_forward = 1,
                      .shard_backward = 1,
                      .capacity = capacity});
}

TEST(Phases, SplitAtTheLoss) {
  Placement p = test::on_devices(1);
  const int f = test::add(p, "f", {0}, 1);
  const int b = test::add(p, "b", {0}, 1, {.after = {f}});
  test::add(p, "reduce", {0}, 1, {.after = {b}});
  test::add(p, "load", {0}, 1);
  p.blocks[f].kind = Kind::forward;
  p.blocks[b].kind = Kind::backward;
  EXPECT_EQ(second_half(p), (std::vector<bool>{false, true, true, false}));
}

TEST(ManyDevices, PhasesMeetTheBoundWithoutAMemoryLimit) {
  for (const char* name : {"v", "x", "m", "nn", "k", "wave", "looped"}) {
    for (const int devices : {16, 32}) {
      const Plan plan = test::searched(tessel(name, devices), 64);
      EXPECT_TRUE(plan.optimal.makespan) << name << " on " << devices;
    }
  }
}

TEST(ManyDevices, DispatchByPhasesAlignsTheDevicesForABlockOnAllOfThem) {
  const Placement p = tessel("nn", 32);
  const Instance in(p);
  const auto makespan = [&](bool phases) {
    Incumbent best(in, 40, Objective::makespan);
    EXPECT_TRUE(best.offer(dispatch(in, 40, {Priority::due, 0, phases}), "test"));
    return best.score().makespan;
  };
  // 40 * 8 of work; 31 * (1 + 3) until the chain has come to a device and gone from it.
  EXPECT_EQ(makespan(true), 40 * 8 + 31 * 4);
  EXPECT_GT(makespan(false), makespan(true));
}

}  // namespace
}  // namespace ostinato
