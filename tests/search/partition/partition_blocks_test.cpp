// SPDX-License-Identifier: Apache-2.0
// What blocks and reading a batch take beside layers: in placements, in what the cutters take for best, and
// in how many chunks a plan has.

#include <gtest/gtest.h>

#include <limits>

#include "search/partition/chain.h"
#include "search/partition/stages.h"
#include "tests/search/partition/joint_options.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

Stage on(std::vector<int> devices, const std::vector<int>& layers, bool recompute = false) {
  return {.layers = layers, .devices = std::move(devices), .recompute = recompute};
}

using test::joint_options;
using test::layer;
using test::profile_of;
using test::random_profile;
using test::some_block_times;

Nanoseconds time_of(const Placement& placement, const char* block) {
  return placement.blocks[placement.find_block(block)].time;
}

Nanoseconds busiest_of(const Placement& placement) {
  std::vector<Nanoseconds> busy(placement.devices.size(), 0);
  for (const Block& block : placement.blocks)
    for (const int d : block.devices) busy[d] += block.time;
  return *std::max_element(busy.begin(), busy.end());
}

TEST(PartitionBlocks, EveryBlockTakesWhatTheEngineTakes) {
  Profile profile = profile_of({10, 20, 30, 40});
  profile.rank = {.forward = 3, .backward = 5, .read = 100};
  const Placement whole =
      place_stages(profile, {.devices = 2}, {on({0}, {0}), on({1}, {1, 2}), on({0}, {3})});
  EXPECT_EQ(time_of(whole, "s0.F"), 10 + 3 + 100);
  EXPECT_EQ(time_of(whole, "s0.B"), 20 + 5);
  EXPECT_EQ(time_of(whole, "s1.F"), 20 + 30 + 3);
  EXPECT_EQ(time_of(whole, "s2.F"), 40 + 3 + 100);
}

TEST(PartitionBlocks, WhatRunsAgainIsNoBlockOfItsOwn) {
  Profile profile = profile_of({10, 20});
  profile.rank = {.forward = 3, .backward = 5};
  const Placement again = place_stages(profile, {.devices = 2}, {on({0}, {0}, true), on({1}, {1})});
  EXPECT_EQ(time_of(again, "s0.B"), 20 + 10 + 5);
}

TEST(PartitionBlocks, EachHalfIsABlock) {
  Profile profile = profile_of({10, 20});
  for (LayerCost& cost : profile.layers) cost.backward_input = cost.backward_weight = cost.forward;
  profile.rank = {.forward = 3, .backward = 5};
  const Placement split =
      place_stages(profile, {.devices = 2, .split_backward = true}, {on({0}, {0}), on({1}, {1})});
  EXPECT_EQ(time_of(split, "s1.I"), 20 + 5);
  EXPECT_EQ(time_of(split, "s1.W"), 20 + 5);
}

TEST(PartitionBlocks, AShardIsABlockOnEachDevice) {
  Profile profile = profile_of({40, 10, 10});
  profile.layers[0].shardable = true;
  profile.rank = {.forward = 3, .backward = 5};
  const Placement sharded =
      place_stages(profile, {.devices = 2}, {on({0, 1}, {0}), on({0}, {1}), on({1}, {2})});
  EXPECT_EQ(time_of(sharded, "s0.F"), 20 + 3);
  EXPECT_EQ(time_of(sharded, "s0.B"), 40 + 5);
}

TEST(PartitionBlocks, AnInferenceHasForwardsAlone) {
  Profile profile = profile_of({10, 20});
  profile.rank = {.forward = 3, .backward = 5, .read = 7};
  const Placement forwards =
      place_stages(profile, {.devices = 2, .inference = true}, {on({0}, {0}), on({1}, {1})});
  EXPECT_EQ(time_of(forwards, "s1.F"), 20 + 3 + 7);
}

/// The least busiest device over all ways to cut these layers into stages of these devices.
Nanoseconds least_busiest(const Profile& profile, const PartitionOptions& options, std::vector<Stage>& stages,
                          int first) {
  const auto layers = static_cast<int>(profile.layers.size());
  const int all = options.devices * options.chunks, s = static_cast<int>(stages.size());
  if (s == all)
    return first == layers ? busiest_of(place_stages(profile, options, stages))
                           : std::numeric_limits<Nanoseconds>::max();
  const int device = options.layout == ChunkLayout::looped || s / options.devices % 2 == 0
                         ? s % options.devices
                         : options.devices - 1 - s % options.devices;
  Nanoseconds least = std::numeric_limits<Nanoseconds>::max();
  for (int end = first; end < layers; ++end) {
    stages.push_back({.layers = Layers::run(first, end + 1), .devices = {device}});
    least = std::min(least, least_busiest(profile, options, stages, end + 1));
    stages.pop_back();
  }
  return least;
}

TEST(PartitionBlocks, CutsAreAsGoodAsTheBestOfAll) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    Profile profile = random_profile(random, 6);
    profile.rank = some_block_times(random);
    const PartitionOptions options{.devices = 2,
                                   .chunks = 1 + round % 3,
                                   .layout = round % 2 ? ChunkLayout::wave : ChunkLayout::looped,
                                   .micro_batches = 4};
    SCOPED_TRACE(round);
    const StageCuts cuts = cut_chain(profile, options);
    std::vector<Stage> none;
    EXPECT_EQ(cuts.busiest, least_busiest(profile, options, none, 0));
    EXPECT_EQ(cuts.busiest, busiest_of(place_stages(profile, options, cuts.stages)));
    EXPECT_LE(cuts.lower_bound, cuts.busiest);
  }
}

TEST(PartitionBlocks, ChunksThatCostMoreThanTheyGainAreNotTaken) {
  const auto stages = [](Nanoseconds block) {
    Profile profile = profile_of(std::vector<Nanoseconds>(12, 1000));
    profile.rank = {.forward = block, .backward = block};
    const JointChoice choice = choose_plan(profile, joint_options(3, 4));
    return choice.candidates[choice.winner].cuts->stages.size();
  };
  EXPECT_GT(stages(0), 3U);
  EXPECT_EQ(stages(3000), 3U);
}

}  // namespace
}  // namespace ostinato
