#include "search/shapes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "search/error.h"

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
                                         Known{"nn", 8, 20, 3}, Known{"k", 6, 10, 2}),
                         [](const auto& info) { return info.param.name; });

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
    EXPECT_EQ(block.workspace, options.memory);
  }
}

INSTANTIATE_TEST_SUITE_P(All, AnyShape, testing::ValuesIn(shape_names()),
                         [](const auto& info) { return info.param; });

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

TEST(Shape, CarriesTheCapacityOfEachDevice) {
  for (const Device& device : shape("v", {.capacity = 40}).devices) EXPECT_EQ(device.memory, 40);
}

std::string refusal(const std::string& name, const ShapeOptions& options) {
  try {
    shape(name, options);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Shape, RefusesWhatDoesNotFit) {
  EXPECT_EQ(refusal("x", {.devices = 3}), "shape x needs an even number of devices, got 3");
  EXPECT_EQ(refusal("v", {.devices = 0}), "a placement needs at least 1 device, got 0");
  EXPECT_EQ(refusal("wave", {.chunks = 0}), "shape wave needs at least 1 chunk per device, got 0");
  EXPECT_EQ(refusal("loped", {}), "unknown shape \"loped\": did you mean \"looped\"?");
  EXPECT_NE(refusal("looped", {.devices = 1000000, .chunks = 1000000}), "");
  EXPECT_NE(refusal("v", {.forward = -1}), "");
  EXPECT_NE(refusal("v", {.memory = -1}), "");
}

}  // namespace
}  // namespace ostinato
