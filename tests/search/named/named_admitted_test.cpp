// SPDX-License-Identifier: Apache-2.0
// Where named schedules run, and why not elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/search/checked.h"
#include "tests/search/named/named_runs.h"
#include "tests/search/random_plan.h"

namespace ostinato {
namespace {

/// A placement of the shape whose times and links are anything.
Placement uneven(const std::string& name, const ShapeOptions& options, std::mt19937_64& random) {
  Placement placement = shape(name, options);
  placement.link.latency = static_cast<Nanoseconds>(random() % 5);
  for (Block& block : placement.blocks) block.time = static_cast<Nanoseconds>(random() % 20);
  return placement;
}

/// Every step once on each of its devices, no cycle, and a plan that holds.
void expect_complete(const std::string& name, const Placement& placement, int n) {
  const NamedSchedule named = named_schedule(name, placement, n);
  if (!named.orders) {
    EXPECT_NE(named.why_not, "");
    return;
  }
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    std::map<std::pair<int, int>, int> seen;
    for (const Step& step : (*named.orders)[d]) ++seen[{step.block, step.micro_batch}];
    for (int b = 0; b < static_cast<int>(placement.blocks.size()); ++b) {
      const auto& devices = placement.blocks[b].devices;
      const bool here = std::find(devices.begin(), devices.end(), static_cast<int>(d)) != devices.end();
      for (int i = 0; i < n; ++i)
        ASSERT_EQ((seen[{b, i}]), here ? 1 : 0) << name << ' ' << placement.blocks[b].name;
    }
  }
  const auto starts = earliest_starts(placement, n, *named.orders);
  ASSERT_TRUE(starts) << name << " on " << placement.name << ", " << n;
  Plan plan;
  plan.placement_name = placement.name;
  plan.micro_batches = n;
  plan.schedule = *starts;
  test::complete_figures(plan, placement);
  SCOPED_TRACE(name);
  test::expect_holds(plan, placement);
}

TEST(Named, EveryScheduleRunsEverywhereThatItIsAdmitted) {
  std::mt19937_64 random(7);
  for (const std::string& kind : shape_names()) {
    for (const int devices : {2, 4, 6, 8}) {
      for (const int chunks : {1, 2, 3, 4}) {
        for (const Nanoseconds weight : {0, 1}) {
          ShapeOptions options = unit_split(devices, chunks);
          options.weight = weight;
          const Placement placement = uneven(kind, options, random);
          for (const std::string& name : named_schedules()) {
            for (const int n : {1, 2, 3, 5, 8, 13}) expect_complete(name, placement, n);
          }
        }
      }
    }
  }
}

TEST(Named, GPipeIsAdmittedEverywhereAndForInference) {
  for (const std::string& kind : shape_names()) {
    for (const bool training : {true, false}) {
      const Placement placement = shape(kind, {.training = training});
      EXPECT_TRUE(named_schedule("gpipe", placement, 3).orders) << kind;
    }
  }
}

TEST(Named, SaysWhyNot) {
  const auto why = [](const char* name, const Placement& placement) {
    return named_schedule(name, placement, 4).why_not;
  };
  const Placement v = shape("v", {});
  EXPECT_EQ(why("zb-h1", v), "zb-h1 needs the backward split into backward_input and backward_weight");
  EXPECT_EQ(
      why("interleaved-1f1b", v),
      "interleaved-1f1b needs several chunks per device, looped; this placement has one chunk per device");
  EXPECT_EQ(why("1f1b", shape("v", {.training = false})),
            "1f1b is a schedule for training; this placement runs no backward");
  EXPECT_EQ(why("1f1b", shape("m", {})),
            "1f1b needs a chain of stages with one device each: block embed.F holds 4 devices");
  EXPECT_EQ(why("1f1b", shape("x", {})),
            "1f1b needs a chain of stages with one device each: the forwards are not one chain: b0.F does "
            "not follow "
            "a3.F");
  EXPECT_EQ(why("interleaved-1f1b", shape("wave", {})),
            "interleaved-1f1b needs several chunks per device, looped; this placement has several chunks per "
            "device, "
            "as a wave");
}

TEST(Named, SaysWhyNotOfTwoChains) {
  const auto why = [](const char* name, const Placement& placement) {
    return named_schedule(name, placement, 4).why_not;
  };
  EXPECT_EQ(why("chimera", shape("v", {})),
            "chimera needs two chains in opposite directions: the placement has 1 independent part");
  EXPECT_EQ(
      why("dualpipe", shape("chains", {.devices = 4})),
      "dualpipe needs two chains in opposite directions: the chains do not run through the same devices in "
      "opposite directions");
  EXPECT_EQ(why("chimera", shape("x", {.training = false})),
            "chimera is a schedule for training; this placement runs no backward");
  EXPECT_EQ(why("1f1b+", shape("v", {})),
            "1f1b+ is not for a chain with one chunk per device: use 1f1b there");
}

TEST(Named, FollowsTheChainThroughAnyNumberingOfTheDevices) {
  Placement placement = shape("v", whole(3, 1, 2, 5));
  for (Block& block : placement.blocks) block.devices[0] = (block.devices[0] * 2 + 1) % 3;
  EXPECT_EQ(makespan("1f1b", placement, 6), (6 + 3 - 1) * 7);
}

TEST(Named, AdmitsSkipEdges) {
  Placement placement = shape("v", whole(4, 1, 2, 5));
  placement.blocks[placement.find_block("s3.F")].after.push_back({placement.find_block("s0.F"), 0});
  EXPECT_EQ(makespan("1f1b", placement, 6), (6 + 4 - 1) * 7);
}

TEST(Named, LeavesDevicesWithoutAStageIdle) {
  Placement placement = shape("v", whole(2, 1, 2, 5));
  placement.devices.push_back({"spare", "", kUnlimited, 0});
  const NamedSchedule named = named_schedule("1f1b", placement, 2);
  ASSERT_TRUE(named.orders);
  ASSERT_EQ(named.orders->size(), 3u);
  EXPECT_TRUE((*named.orders)[2].empty());
}

}  // namespace
}  // namespace ostinato
