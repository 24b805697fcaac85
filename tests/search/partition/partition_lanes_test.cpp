// SPDX-License-Identifier: Apache-2.0
// Layers on lanes: where their stages end, what counts their memory, and what a plan gains.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "search/checker/any_placement.h"
#include "search/partition/chain.h"
#include "search/partition/joint.h"
#include "search/partition/stages.h"
#include "search/placement/lanes.h"
#include "search/placement/placement_toml.h"
#include "tests/search/checked.h"
#include "tests/search/partition/joint_options.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

using testing::ElementsAre;

/// Two blocks of attention, dispatch, experts and combine.
Profile two_blocks() {
  Profile profile = test::profile_of({10, 8, 12, 8, 10, 8, 12, 8});
  for (LayerCost& layer : profile.layers) {
    layer.kept = 100;
    layer.input_bytes = layer.output_bytes = 10;
    layer.parameters = layer.index % 2 == 0 ? 1000 : 0;
    if (layer.index % 2 == 1) layer.lane = "network";
    layer.forward_workspace = layer.index;
  }
  return profile;
}

std::vector<std::string> names(const Placement& placement) {
  std::vector<std::string> list;
  for (const Block& block : placement.blocks) list.push_back(block.name);
  return list;
}

const Block& block(const Placement& placement, const char* name) {
  return placement.blocks[placement.find_block(name)];
}

TEST(PartitionLanes, EndTheStageBeforeThem) {
  const Profile profile = two_blocks();
  const std::vector<Stage> stages = {{.layers = Layers::run(0, 4), .devices = {0}},
                                     {.layers = Layers::run(4, 8), .devices = {1}}};
  const Placement placement = place_stages(profile, {.devices = 2}, stages);
  EXPECT_THAT(names(placement),
              ElementsAre("s0.F", "s0:network.F", "s1.F", "s1:network.F", "s2.F", "s2:network.F", "s3.F",
                          "s3.B", "s2:network.B", "s2.B", "s1:network.B", "s1.B", "s0:network.B", "s0.B"));
  EXPECT_EQ(block(placement, "s3.F").time, 12 + 8);  // the last layer computes the loss
  EXPECT_EQ(count_without_lanes(placement), 2);
  EXPECT_EQ(block(placement, "s1:network.F").devices, (std::vector<int>{2}));
  EXPECT_EQ(block(placement, "s2:network.B").time, 16);
  EXPECT_EQ(block(placement, "s2.F").time, 10);
  // What both layers keep, what the second takes while it runs, and the input.
  EXPECT_EQ(block(placement, "s0.F").memory, 10 + 200 + 1);
  EXPECT_EQ(block(placement, "s0.B").memory, -211);
  EXPECT_EQ(placement.stages[1].name, "s0:network");
  EXPECT_EQ(placement.stages[1].layers, Layers::run(1, 2));
  const int waits = placement.find_block("s1:network.B");
  ASSERT_EQ(placement.blocks[waits].after.size(), 2u);
  EXPECT_EQ(placement.blocks[placement.blocks[waits].after[1].block].name, "s2.B");
}

TEST(PartitionLanes, AreComputedWhereAStageBeginsWithThemOrRecomputes) {
  const Profile profile = two_blocks();
  std::vector<Stage> stages = {{.layers = Layers::run(0, 3), .devices = {0}},
                               {.layers = Layers::run(3, 8), .devices = {1}}};
  const Placement begins = place_stages(profile, {.devices = 2}, stages);
  EXPECT_THAT(names(begins), testing::Not(testing::Contains("s1:network.F")));
  EXPECT_EQ(block(begins, "s2.F").time, 8 + 10);
  // While they compute an exchange, nothing runs on the lane to which s2 leaves its next one.
  const int lane = block(begins, "s2:network.F").devices.front();
  for (const char* computes : {"s2.F", "s2.B", "s3.F", "s3.B"})
    EXPECT_EQ(block(begins, computes).devices, (std::vector<int>{1, lane})) << computes;
  stages[1].recompute = true;
  const Placement recomputes = place_stages(profile, {.devices = 2}, stages);
  EXPECT_EQ(block(recomputes, "s2.F").time, 8 + 10 + 8 + 12 + 8);
  EXPECT_THAT(names(place_stages(profile, {.devices = 2, .lanes = LanesOf::none}, stages)),
              ElementsAre("s0.F", "s1.F", "s1.B", "s0.B"));
}

TEST(PartitionLanes, OfStagesThatRecomputeKeepWhatTheyExchange) {
  const std::vector<Stage> stages = {{.layers = Layers::run(0, 4), .devices = {0}, .recompute = true},
                                     {.layers = Layers::run(4, 8), .devices = {1}, .recompute = true}};
  const Placement placement = place_stages(two_blocks(), {.devices = 2, .lanes = LanesOf::all}, stages);
  EXPECT_EQ(block(placement, "s0.F").time, 10);
  EXPECT_EQ(block(placement, "s0:network.B").time, 16);  // an exchange does not run again
  EXPECT_EQ(block(placement, "s0.B").time, 20 + 10);
  // The input; of the exchange its input, what it keeps, and what it takes while it runs.
  EXPECT_EQ(block(placement, "s0.F").memory, 10 + 10 + 100 + 1);
  EXPECT_EQ(block(placement, "s0.B").memory, -121);
  const auto recomputes = [](const Stage& stage) { return stage.recompute; };
  EXPECT_EQ(std::ranges::count_if(placement.stages, recomputes), 4);
}

/// Plans list steps by the device's place, and are read beside the file.
TEST(PartitionLanes, AreInTheOrderOfTheDevicesWhateverTheStages) {
  const std::vector<Stage> stages = {{.layers = Layers::run(0, 4), .devices = {1}},
                                     {.layers = Layers::run(4, 8), .devices = {0}}};
  const Placement placement = place_stages(two_blocks(), {.devices = 2}, stages);
  const Placement read = parse_placement(format_placement(placement), "written").placement;
  ASSERT_EQ(read.blocks.size(), placement.blocks.size());
  for (std::size_t b = 0; b < read.blocks.size(); ++b)
    EXPECT_EQ(read.blocks[b].devices, placement.blocks[b].devices) << read.blocks[b].name;
}

TEST(PartitionLanes, APlanHidesThem) {
  const Profile profile = two_blocks();
  JointOptions options = test::joint_options(2, 8);
  const JointChoice with = choose_plan(profile, options);
  options.partition.lanes = LanesOf::none;
  const JointChoice without = choose_plan(profile, options);
  const auto makespan = [](const JointChoice& choice) {
    return choice.candidates[choice.winner].plan->makespan;
  };
  // Of 3 x 76 ns a micro-batch, 3 x 24 are exchanges that can be hidden.
  EXPECT_LT(makespan(with) * 5, makespan(without) * 4);
  EXPECT_LE(with.any_placement.lower_bound, makespan(with));
}

TEST(PartitionLanes, APlanDoesWithoutThemWhereTheirBlocksCostMore) {
  Profile profile = two_blocks();
  for (const int devices : {1, 2}) {
    JointOptions options = test::joint_options(devices, 4), without = options;
    without.partition.lanes = LanesOf::none;
    for (const Nanoseconds each : {0, 2, 5, 50}) {
      profile.rank.forward = profile.rank.backward = each;
      const JointChoice with = choose_plan(profile, options), none = choose_plan(profile, without);
      EXPECT_LE(with.candidates[with.winner].value(), none.candidates[none.winner].value()) << each;
    }
  }
}

TEST(PartitionLanes, APlanThatHasToRecomputeHidesThem) {
  Profile profile = two_blocks();
  for (LayerCost& layer : profile.layers)
    if (!layer.lane.empty()) layer.kept = 0;
  JointOptions options = test::joint_options(2, 8);
  options.partition.device_memory = 2300;  // parameters, and little of what is kept
  const JointChoice with = choose_plan(profile, options);
  options.partition.lanes = LanesOf::none;
  const JointChoice without = choose_plan(profile, options);
  const Candidate& best = with.candidates[with.winner];
  EXPECT_TRUE(std::ranges::any_of(best.placement->stages, &Stage::recompute)) << best.name;
  EXPECT_GT(best.placement->devices.size(), 2u) << best.name;
  EXPECT_LT(best.plan->makespan * 100, without.candidates[without.winner].plan->makespan * 95);
}

}  // namespace
}  // namespace ostinato
