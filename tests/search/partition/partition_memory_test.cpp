// SPDX-License-Identifier: Apache-2.0
// What a stage keeps and its peak above that: by sums for a run of layers (chain_costs.h), and added up
// for a stage (stage_cost.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "search/partition/chain_costs.h"
#include "search/partition/stage_cost.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato::chain {
namespace {

LayerCost layer(int index, Bytes kept, Bytes forward, Bytes backward, std::vector<LayerInput> passed = {},
                std::vector<LayerInput> released = {}) {
  LayerCost cost;
  cost.index = index;
  cost.name = std::to_string(index);
  cost.forward.repeats = cost.backward.repeats = 1;
  cost.kept = kept;
  cost.forward_workspace = forward;
  cost.backward_workspace = backward;
  cost.passed = std::move(passed);
  cost.released = std::move(released);
  return cost;
}

TEST(StageMemory, WorkspaceMeetsWhatTheLayersBeforeKeep) {
  // The first has by far the largest workspace, when nothing else is kept yet.
  const std::vector<LayerCost> layers = {layer(0, 10, 400, 300), layer(1, 200, 5, 40)};
  const LayerSums sums(layers, false);
  EXPECT_EQ(sums.kept(0, 2), 210);
  EXPECT_EQ(sums.workspace(0, 2), 10 + 400 - 210);
  EXPECT_EQ(sums.workspace(1, 2), 40);
}

TEST(StageMemory, AStageDoesNotKeepWhatItSent) {
  // Layer 0 keeps 100 for layer 2 alone; layer 1 shows the same memory.
  const std::vector<LayerCost> layers = {layer(0, 100, 0, 30, {}, {{0, 100}}),
                                         layer(1, 0, 0, 50, {}, {{0, 100}}), layer(2, 7, 0, 60)};
  const LayerSums sums(layers, false);
  EXPECT_EQ(sums.kept(0, 3), 107);
  EXPECT_EQ(sums.kept(0, 2), 0);
  EXPECT_EQ(sums.kept(0, 1), 0);
  EXPECT_EQ(sums.kept(1, 2), 0);
  EXPECT_EQ(sums.workspace(0, 1), 100);  // its output, until it is sent
  EXPECT_EQ(sums.workspace(0, 3), 60);
}

/// Layers that read memory of others, and let go of it, anywhere before them. `apart`: of their own alone.
Profile drawn(std::mt19937& draw, int layers, bool apart) {
  const auto number = [&](int most) { return static_cast<Bytes>(draw() % static_cast<unsigned>(most)); };
  Profile profile;
  profile.completeness.complete = true;
  for (int l = 0; l < layers; ++l) {
    std::vector<LayerInput> passed, released;
    for (int from = 0; from <= l; ++from) {
      if (from < l && !apart && number(3) == 0) passed.push_back({from, number(50)});
      if ((from == l || !apart) && number(3) == 0) released.push_back({from, number(120)});
    }
    profile.layers.push_back(layer(l, number(100), number(300), number(300), passed, released));
  }
  return profile;
}

TEST(StageMemory, SumsOfRunsAreThoseOfTheStage) {
  std::mt19937 draw(7);
  for (int round = 0; round < 60; ++round) {
    const Profile profile = drawn(draw, 9, round % 2 == 0);
    PartitionOptions options;
    options.devices = 1;
    options.transfers = false;
    const Model model(profile, options);
    const LayerSums sums(model.on_kind[0], false);
    for (int first = 0; first < 9; ++first) {
      std::vector<int> stage;
      for (int end = first + 1; end <= 9; ++end) {
        stage.push_back(end - 1);
        const StageCost cost = cost_on_kind(model, 0, stage);
        ASSERT_EQ(sums.kept(first, end), cost.kept);
        ASSERT_EQ(sums.workspace(first, end), cost.workspace());
        // What bounds rest on: a longer run that ends alike keeps as much at least, and nothing is owed.
        ASSERT_GE(cost.kept, 0);
        ASSERT_GE(sums.kept(std::max(0, first - 1), end), cost.kept);
      }
    }
  }
}

TEST(StageMemory, OfMoreLayersThanAreTabulated) {
  std::mt19937 draw(8);
  Profile profile = drawn(draw, 9, false);
  std::vector<LayerCost> layers = profile.layers;
  const LayerSums few(layers, false);
  for (int l = 9; l <= kMostTabulated; ++l) layers.push_back(layer(l, 1, 2, 3));
  const LayerSums many(layers, false);
  for (int first = 0; first < 9; ++first)
    for (int end = first + 1; end <= 9; ++end)
      ASSERT_EQ(many.workspace(first, end), few.workspace(first, end));
}

/// What another stage keeps is not this one's to let go, though its number is among this one's.
TEST(StageMemory, AStageOfABranchKeepsItsOwn) {
  Profile profile;
  profile.completeness.complete = true;
  profile.layers = {layer(0, 10, 0, 0), layer(1, 500, 0, 0),
                    layer(2, 20, 0, 7, {{1, 300}}, {{1, 400}, {2, 5}})};
  PartitionOptions options;
  options.devices = 1;
  options.transfers = false;
  const StageCost cost = cost_on_kind(Model(profile, options), 0, {0, 2});
  EXPECT_EQ(cost.kept, 10 + 20 - 5);
  EXPECT_EQ(cost.forward_workspace, 5);
  EXPECT_EQ(cost.backward_workspace, 7);
}

}  // namespace
}  // namespace ostinato::chain
