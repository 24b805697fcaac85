// SPDX-License-Identifier: Apache-2.0
// Plans close to the bound on more devices than a search over whole schedules can look at.

#include <gtest/gtest.h>

#include <algorithm>

#include "search/placement/phases.h"
#include "search/placement/shapes.h"
#include "search/repetend/completion.h"
#include "search/schedule/dispatch.h"
#include "search/schedule/incumbent.h"
#include "search/schedule/justify.h"
#include "search/schedule/shift.h"
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

/// The repeating part of a search for few micro-batches has the best rate; the ends of all of them hide more.
TEST(ManyDevices, ManyMicroBatchesMeetTheBoundWhereFewThatAreRepeatedDoNot) {
  const Placement wave = shape("wave", {.devices = 16, .forward = 10, .backward = 19});
  const Plan plan = test::searched(wave, 256);
  EXPECT_TRUE(plan.optimal.makespan) << plan.makespan << " " << plan.lower_bound.makespan;
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

/// The rigid repetition of a repetend, and what becomes of it.
struct Improved {
  Score rigid, justified;
  Bytes most = 0;  ///< largest peak of the justified one
};

Improved justified(const Placement& p, int micro_batches, const JustifyOptions& options) {
  const Instance in(p);
  const Instance mirror = in.reversed();
  const Repetend r = find_repetend(in, Bounds(in), 1, {});
  const Completed rigid = complete(in, mirror, r, {.micro_batches = micro_batches, .width = 0});
  const Justified better = justify(in, mirror, micro_batches, rigid.sequence, options);
  Incumbent before(in, micro_batches, Objective::makespan);
  Incumbent after(in, micro_batches, Objective::makespan);
  EXPECT_TRUE(before.offer(rigid.sequence, "test"));
  EXPECT_TRUE(after.offer(better.sequence, "test"));
  EXPECT_LE(after.score().makespan, better.makespan);
  return {before.score(), after.score(), *std::max_element(after.peaks().begin(), after.peaks().end())};
}

TEST(Justify, FillsBothEndsOfTheRepetition) {
  const Placement p = tessel("x", 8);
  const Improved found = justified(p, 40, {});
  EXPECT_GT(found.rigid.makespan, found.justified.makespan);
  EXPECT_EQ(found.justified.makespan, Bounds(Instance(p)).makespan(40));
}

TEST(Justify, KeepsWithinTheRoom) {
  for (const Bytes room : {6, 8, 10}) {
    for (const bool patient : {false, true}) {
      JustifyOptions options;
      options.patient = patient;
      const Improved found = justified(tessel("x", 8, room), 24, options);
      EXPECT_LE(found.most, room);
      EXPECT_LE(found.justified.makespan, found.rigid.makespan);
    }
  }
  JustifyOptions options;
  options.room.assign(8, 10);
  EXPECT_LE(justified(tessel("x", 8), 24, options).most, 10);
}

TEST(Shift, TheEarliestStartsOfASequence) {
  const Placement p = tessel("v", 2);  // F0, F1, B1, B0
  const Instance in(p);
  const auto early = as_early_as_possible(in, 1, {0, 1, 2, 3});
  EXPECT_EQ(early, (std::vector<ScheduledBlock>{{0, 0, 0}, {1, 0, 1}, {2, 0, 2}, {3, 0, 5}}));
  EXPECT_TRUE(as_early_as_possible(in, 1, {1, 0, 2, 3}).empty());
}

}  // namespace
}  // namespace ostinato
