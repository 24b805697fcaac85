// SPDX-License-Identifier: Apache-2.0
#include "search/placement/shapes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "search/placement/placement_check.h"
#include "search/placement/placement_toml.h"
#include "search/plan/proved.h"
#include "tests/search/checked.h"
#include "tests/support/refusal.h"

namespace ostinato {
namespace {

ShapeOptions tessel() {
  return {.devices = 4, .forward = 1, .backward = 3, .shard_forward = 1, .shard_backward = 1};
}

/// Time of all blocks that hold a device, for the busiest device: no plan's period is shorter.
Nanoseconds load(const Placement& placement) {
  std::vector<Nanoseconds> busy(placement.devices.size(), 0);
  for (const Block& block : placement.blocks) {
    for (const int d : block.devices) busy[d] += block.time;
  }
  return *std::max_element(busy.begin(), busy.end());
}

/// The longest path of dependencies: the time of one micro-batch alone, where its blocks do not meet on a
/// device.
Nanoseconds critical_path(const Placement& placement) {
  std::vector<Nanoseconds> end(placement.blocks.size(), 0);
  Nanoseconds last = 0;
  for (const int b : topological_order(placement)) {
    Nanoseconds start = 0;
    for (const Dependency& input : placement.blocks[b].after) start = std::max(start, end[input.block]);
    end[b] = start + placement.blocks[b].time;
    last = std::max(last, end[b]);
  }
  return last;
}

struct Known {
  const char* name;
  Nanoseconds period, path, forward_period;
};

class TesselShape : public testing::TestWithParam<Known> {};

// Tessel (arXiv 2311.15269), figure 2 with 4 devices, F = 1, B = 3, shards of 1 and 1.
TEST_P(TesselShape, HasThePeriodAndPathOfThePaper) {
  const Known known = GetParam();
  ShapeOptions options = tessel();
  EXPECT_EQ(load(shape(known.name, options)), known.period);
  EXPECT_EQ(critical_path(shape(known.name, options)), known.path);
  options.training = false;
  EXPECT_EQ(load(shape(known.name, options)), known.forward_period);
}

INSTANTIATE_TEST_SUITE_P(All, TesselShape,
                         testing::Values(Known{"v", 4, 16, 1}, Known{"x", 8, 16, 2}, Known{"m", 6, 18, 2},
                                         Known{"nn", 8, 20, 3}, Known{"nn-first", 8, 20, 3},
                                         Known{"multimodal", 8, 20, 3}, Known{"skip", 4, 16, 1},
                                         Known{"k", 6, 10, 2}),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::erase(name, '-');
                           return name;
                         });

class AnyShape : public testing::TestWithParam<std::string> {};

TEST_P(AnyShape, GivesBackWhatItTakesOnEveryDevice) {
  for (const Nanoseconds weight : {0, 2}) {
    ShapeOptions options = tessel();
    options.memory = 7;
    options.weight = weight;
    const Placement placement = shape(GetParam(), options);
    std::vector<Bytes> balance(placement.devices.size(), 0);
    for (const Block& block : placement.blocks) {
      for (const int d : block.devices) balance[d] += block.memory;
    }
    for (const Bytes bytes : balance) EXPECT_EQ(bytes, 0);
  }
}

TEST_P(AnyShape, HasOneForwardAndOneBackwardAStage) {
  const Placement placement = shape(GetParam(), tessel());
  std::map<std::string, std::vector<Kind>> kinds;
  for (const Block& block : placement.blocks) kinds[block.stage].push_back(block.kind);
  for (const auto& [stage, list] : kinds)
    EXPECT_EQ(list, (std::vector{Kind::forward, Kind::backward})) << stage;
  EXPECT_EQ(topological_order(placement).size(), placement.blocks.size());
}

TEST_P(AnyShape, MirrorsTheForwardDependencies) {
  const Placement placement = shape(GetParam(), tessel());
  for (const Block& block : placement.blocks) {
    if (block.kind != Kind::forward) continue;
    const Block& backward = placement.blocks[placement.find_block(block.stage + ".B")];
    for (const Dependency& input : block.after) {
      const Block& earlier =
          placement.blocks[placement.find_block(placement.blocks[input.block].stage + ".B")];
      const bool follows = std::any_of(earlier.after.begin(), earlier.after.end(), [&](const Dependency& d) {
        return placement.blocks[d.block].name == backward.name;
      });
      EXPECT_TRUE(follows) << earlier.name << " after " << backward.name;
    }
  }
}

TEST_P(AnyShape, InferenceRunsForwardsThatKeepNothing) {
  ShapeOptions options = tessel();
  options.training = false;
  for (const Block& block : shape(GetParam(), options).blocks) {
    EXPECT_EQ(block.kind, Kind::forward);
    EXPECT_EQ(block.memory, 0);
    const bool embedding = block.devices.size() > 1 && GetParam() != "k";
    EXPECT_EQ(block.workspace, embedding ? 0 : 1) << block.name;
  }
}

TEST_P(AnyShape, IsAPlacementThatFilesCarry) {
  ShapeOptions options = tessel();
  options.forward = {{3, 1, 1, 2}};
  options.weight = {{0, 2, 0, 0}};
  options.capacity = {{9, 8, kUnlimited, 8}};
  options.static_memory = 2;
  options.workspace = {{0, 0, 1, 0}};
  options.link = {.latency = 5, .bytes_per_second = 1'000'000'000};
  options.bytes = 7;
  const Placement placement = shape(GetParam(), options);
  check_placement(placement, {}, "");
  const Placement read = parse_placement(format_placement(placement), "text").placement;
  EXPECT_EQ(format_placement(read), format_placement(placement));
}

INSTANTIATE_TEST_SUITE_P(All, AnyShape, testing::ValuesIn(shape_names()), [](const auto& test) {
  std::string name = test.param;
  std::erase(name, '-');
  return name;
});

TEST(Shape, SplitBackwardHasAWeightHalfAfterTheInputHalf) {
  ShapeOptions options = tessel();
  options.weight = 2;
  const Placement placement = shape("v", options);
  const Block& weight = placement.blocks[placement.find_block("s1.W")];
  EXPECT_EQ(weight.kind, Kind::backward_weight);
  EXPECT_EQ(weight.time, 2);
  ASSERT_EQ(weight.after.size(), 1u);
  EXPECT_EQ(placement.blocks[weight.after[0].block].name, "s1.I");
  EXPECT_EQ(placement.blocks[weight.after[0].block].kind, Kind::backward_input);
}

std::vector<int> forward_devices(const Placement& placement) {
  std::vector<int> devices;
  for (const Block& block : placement.blocks) {
    if (block.kind == Kind::forward) devices.push_back(block.devices.front());
  }
  return devices;
}

TEST(Shape, LoopedChunksGoAroundAndWaveChunksGoThereAndBack) {
  EXPECT_EQ(forward_devices(shape("looped", {.devices = 3, .chunks = 2})), (std::vector{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(forward_devices(shape("wave", {.devices = 3, .chunks = 3})),
            (std::vector{0, 1, 2, 2, 1, 0, 0, 1, 2}));
}

std::vector<std::string> stage_order(const Placement& placement) {
  std::vector<std::string> stages;
  for (const Block& block : placement.blocks) {
    if (block.kind == Kind::forward) stages.push_back(block.stage);
  }
  return stages;
}

TEST(Shape, HasItsShardsWhereTheNameSays) {
  EXPECT_EQ(stage_order(shape("nn", {})),
            (std::vector<std::string>{"encoder_embed", "encoder0", "encoder1", "decoder_embed", "decoder0",
                                      "decoder1"}));
  EXPECT_EQ(stage_order(shape("nn-first", {})),
            (std::vector<std::string>{"encoder_embed", "encoder0", "decoder_embed", "decoder0", "decoder1",
                                      "decoder2"}));
  EXPECT_EQ(stage_order(shape("multimodal", {})),
            (std::vector<std::string>{"embed", "s0", "s1", "s2", "s3", "loss"}));
}

TEST(Shape, SkipEdgesReachTheMirroredStage) {
  const Placement placement = shape("skip", {.devices = 6});
  const auto feeds = [&](const char* from, const char* to) {
    const auto& after = placement.blocks[placement.find_block(to)].after;
    return std::any_of(after.begin(), after.end(),
                       [&](const Dependency& d) { return d.block == placement.find_block(from); });
  };
  EXPECT_TRUE(feeds("s0.F", "s5.F"));
  EXPECT_TRUE(feeds("s1.F", "s4.F"));
  EXPECT_TRUE(feeds("s5.B", "s0.B"));
  EXPECT_FALSE(feeds("s3.F", "s2.F"));
}

TEST(Shape, ChainsAreIndependentAndStartApart) {
  EXPECT_EQ(forward_devices(shape("chains", {.devices = 4, .chunks = 2})),
            (std::vector{0, 1, 2, 3, 2, 3, 0, 1}));
  EXPECT_TRUE(shape("chains", {.chunks = 3}).blocks[4].after.empty());
}

TEST(Shape, GivesEachDeviceItsOwnFigures) {
  const Placement placement = shape("v", {.devices = 2,
                                          .forward = {{3, 5}},
                                          .memory = {{7, 8}},
                                          .workspace = {{0, 9}},
                                          .capacity = {{40, kUnlimited}},
                                          .static_memory = {{1, 2}},
                                          .link = {.latency = 6},
                                          .bytes = 11});
  const Block& last = placement.blocks[placement.find_block("s1.F")];
  EXPECT_EQ(placement.blocks[placement.find_block("s0.F")].time, 3);
  EXPECT_EQ(last.time, 5);
  EXPECT_EQ(last.memory, 8);
  EXPECT_EQ(last.workspace, 9);
  EXPECT_EQ(last.after[0].bytes, 11);
  EXPECT_EQ(placement.blocks[placement.find_block("s1.B")].after[0].bytes, 0) << "from its own forward";
  EXPECT_EQ(placement.devices[0].memory, 40);
  EXPECT_EQ(placement.devices[1].memory, kUnlimited);
  EXPECT_EQ(placement.devices[1].static_memory, 2);
  EXPECT_EQ(placement.link.latency, 6);
}

TEST(Shape, AnEmbeddingKeepsNothingAndTheJoinOfKDoes) {
  const auto kept = [](const char* name, const char* block, const ShapeOptions& options) {
    const Placement placement = shape(name, options);
    return placement.blocks[placement.find_block(block)].memory;
  };
  EXPECT_EQ(kept("m", "embed.F", {.memory = 5}), 0);
  EXPECT_EQ(kept("m", "embed.F", {.memory = 5, .shard_memory = 2}), 2);
  EXPECT_EQ(kept("k", "join.B", {.memory = 5}), -5);
}

std::string refusal(const std::string& name, const ShapeOptions& options) {
  return test::refusal_by([&] { shape(name, options); });
}

std::vector<std::string> layers_of(const std::string& name, int devices, int layers) {
  std::vector<std::string> list;
  const Placement p = shape(name, {.devices = devices, .layers = layers});
  for (const Stage& s : p.stages)
    list.push_back(s.name + " " + std::to_string(s.layers.front()) + "-" +
                   std::to_string(s.layers.back() + 1));
  return list;
}

TEST(Shape, SharesTheLayersOfAModelEqually) {
  using Strings = std::vector<std::string>;
  EXPECT_EQ(layers_of("v", 4, 10), (Strings{"s0 0-2", "s1 2-5", "s2 5-7", "s3 7-10"}));
  EXPECT_EQ(layers_of("m", 2, 5), (Strings{"embed 0-1", "s0 1-3", "s1 3-5"}));
  // Both directions of X are a copy of the model.
  EXPECT_EQ(layers_of("x", 2, 4), (Strings{"a0 0-2", "a1 2-4", "b0 0-2", "b1 2-4"}));
  for (const std::string& name : shape_names()) {
    const Placement p = shape(name, {.devices = 4, .layers = 24});
    EXPECT_EQ(parse_placement(format_placement(p), "p.toml").placement.stages.size(), p.stages.size())
        << name;
    EXPECT_EQ(p.stages.back().layers.back(), 23) << name;
  }
  EXPECT_TRUE(layers_of("v", 4, 0).empty());
}

TEST(Shape, RefusesWhatDoesNotFit) {
  EXPECT_EQ(refusal("x", {.devices = 3}), "shape x needs an even number of devices, got 3");
  EXPECT_EQ(refusal("v", {.devices = 0}), "a placement needs at least 1 device, got 0");
  EXPECT_EQ(refusal("wave", {.chunks = 0}), "shape wave needs at least 1 chunk per device, got 0");
  EXPECT_EQ(refusal("loped", {}), "unknown shape \"loped\": did you mean \"looped\"?");
  EXPECT_NE(refusal("looped", {.devices = 1000000, .chunks = 1000000}), "accepted");
  EXPECT_EQ(refusal("v", {.layers = 3}), "3 layers cannot be divided: each of 4 stages needs at least one");
  EXPECT_NE(refusal("v", {.forward = -1}), "accepted");
  EXPECT_NE(refusal("v", {.memory = -1}), "accepted");
  EXPECT_EQ(refusal("v", {.forward = {{1, 2, 3}}}),
            "forward needs one value, or one per device: got 3 for 4 devices");
}

/// 1F1B's time in the memory of three micro-batches instead of eight.
TEST(Shapes, WhatIsOffloadedNeedsNoRoom) {
  const ShapeOptions options = {.devices = 8, .chunks = 1, .offload = 600, .capacity = 3};
  const Placement placement = shape("looped", options);
  EXPECT_EQ(placement.blocks.size(), 8u * (2 + 4));
  const Plan plan = test::searched(placement, 16);
  EXPECT_EQ(plan.makespan,
            69'000 + 32);  // each of its 32 blocks of a nanosecond on the last device is counted
  EXPECT_TRUE(is_optimal(plan));
  EXPECT_GT(test::searched(shape("looped", {.devices = 8, .chunks = 1, .capacity = 3}), 16).makespan,
            140'000);
}

}  // namespace
}  // namespace ostinato
