// SPDX-License-Identifier: Apache-2.0
// Chain partition against brute force over every partition of small chains, and properties on larger ones.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>

#include "search/files/error.h"
#include "search/partition/chain.h"
#include "search/partition/stages.h"
#include "search/placement/placement_toml.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

using test::profile_of;
using test::random_profile;

/// Where each stage ends.
std::vector<int> ends_of(const StageCuts& cuts) {
  std::vector<int> ends;
  for (const Stage& stage : cuts.stages) ends.push_back(stage.layers.back() + 1);
  return ends;
}

int device_of(const PartitionOptions& options, int stage) {
  const int chunk = stage / options.devices, position = stage % options.devices;
  return options.layout == ChunkLayout::wave && chunk % 2 == 1 ? options.devices - 1 - position : position;
}

struct Use {
  Nanoseconds time = 0;
  Bytes memory = 0;
};

/// The header's estimate, written a second time and without prefix sums.
std::vector<Use> use_of(const Profile& profile, const PartitionOptions& options, const std::vector<int>& ends,
                        int cap) {
  const int stages = static_cast<int>(ends.size());
  std::vector<Use> uses(options.devices);
  std::vector<Bytes> fixed(options.devices), kept(options.devices), peak(options.devices);
  for (int s = 0, i = 0; s < stages; ++s) {
    const int d = device_of(options, s);
    const int in_flight = std::min({options.micro_batches, stages - s, cap});
    const std::vector<LayerCost> stage(profile.layers.begin() + i, profile.layers.begin() + ends[s]);
    const auto [own, workspace] = test::memory_of(stage);
    kept[d] += profile.layers[i].input_bytes * in_flight;
    for (; i < ends[s]; ++i) {
      const LayerCost& cost = profile.layers[i];
      uses[d].time += cost.forward.median + cost.backward.median;
      fixed[d] += cost.parameters + cost.gradients + cost.optimizer_state;
    }
    kept[d] += own * in_flight;
    peak[d] = std::max(peak[d], workspace + (cap == 1 ? kept[d] : 0));
  }
  for (int d = 0; d < options.devices; ++d) uses[d].memory = fixed[d] + peak[d] + (cap == 1 ? 0 : kept[d]);
  return uses;
}

void every_partition(int layers, int stages, std::vector<int>& ends, const std::function<void()>& visit) {
  const int first = ends.empty() ? 0 : ends.back();
  if (static_cast<int>(ends.size()) + 1 == stages) {
    ends.push_back(layers);
    visit();
    ends.pop_back();
    return;
  }
  for (int end = first + 1; end < layers; ++end) {
    ends.push_back(end);
    every_partition(layers, stages, ends, visit);
    ends.pop_back();
  }
}

Nanoseconds busiest_of(const std::vector<Use>& uses) {
  Nanoseconds busiest = 0;
  for (const Use& use : uses) busiest = std::max(busiest, use.time);
  return busiest;
}

/// Smallest busiest device over every partition that fits with this cap; nullopt: none fits.
std::optional<Nanoseconds> brute_force(const Profile& profile, const PartitionOptions& options, int cap) {
  std::optional<Nanoseconds> best;
  std::vector<int> ends;
  const int layers = static_cast<int>(profile.layers.size());
  if (layers < options.devices * options.chunks) return best;
  every_partition(layers, options.devices * options.chunks, ends, [&] {
    const std::vector<Use> uses = use_of(profile, options, ends, cap);
    for (const Use& use : uses) {
      if (use.memory > options.device_memory) return;
    }
    if (!best || busiest_of(uses) < *best) best = busiest_of(uses);
  });
  return best;
}

/// What cut_chain() promises: over all caps, the smallest max(busiest, ceil(chain / cap)).
std::optional<Nanoseconds> best_period(const Profile& profile, const PartitionOptions& options) {
  Nanoseconds chain = 0;
  for (const LayerCost& cost : profile.layers) chain += cost.forward.median + cost.backward.median;
  std::optional<Nanoseconds> best;
  for (int cap = std::min(options.micro_batches, options.devices * options.chunks); cap >= 1; --cap) {
    const auto busiest = brute_force(profile, options, cap);
    if (!busiest) continue;
    const Nanoseconds period = std::max(*busiest, (chain + cap - 1) / cap);
    if (!best || period < *best) best = period;
  }
  return best;
}

void expect_as_brute_force(const Profile& profile, const PartitionOptions& options) {
  const std::optional<Nanoseconds> expected = best_period(profile, options);
  if (!expected) {
    EXPECT_THROW(cut_chain(profile, options), InfeasibleError);
    return;
  }
  const StageCuts cuts = cut_chain(profile, options);
  EXPECT_TRUE(cuts.exact());
  Nanoseconds chain = 0;
  for (const LayerCost& cost : profile.layers) chain += cost.forward.median + cost.backward.median;
  EXPECT_EQ(std::max(cuts.busiest, (chain + cuts.in_flight - 1) / cuts.in_flight), *expected);
  EXPECT_EQ(brute_force(profile, options, cuts.in_flight), cuts.busiest);
  const std::vector<Use> uses = use_of(profile, options, ends_of(cuts), cuts.in_flight);
  EXPECT_EQ(busiest_of(uses), cuts.busiest);
  for (const Use& use : uses) EXPECT_LE(use.memory, options.device_memory);
}

TEST(PartitionChain, AgreesWithEveryPartitionOfSmallChains) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    PartitionOptions options;
    options.devices = 1 + static_cast<int>(random() % 4);
    options.micro_batches = 1 + static_cast<int>(random() % 6);
    options.device_memory = round % 3 == 0 ? kUnlimited : 20 + static_cast<Bytes>(random() % 250);
    const int layers = options.devices + static_cast<int>(random() % 7);
    SCOPED_TRACE("round " + std::to_string(round));
    Profile profile = random_profile(random, layers);
    if (round % 2 == 0) test::share_memory(random, profile);
    expect_as_brute_force(profile, options);
  }
}

TEST(PartitionChain, AgreesWithEveryPartitionIntoSeveralChunks) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    PartitionOptions options;
    options.devices = 1 + static_cast<int>(random() % 3);
    options.chunks = 2 + static_cast<int>(random() % 2);
    options.layout = random() % 2 ? ChunkLayout::wave : ChunkLayout::looped;
    options.micro_batches = 1 + static_cast<int>(random() % 4);
    options.device_memory = round % 3 == 0 ? kUnlimited : 60 + static_cast<Bytes>(random() % 300);
    const int layers = options.devices * options.chunks + static_cast<int>(random() % 4);
    SCOPED_TRACE("round " + std::to_string(round));
    expect_as_brute_force(random_profile(random, layers), options);
  }
}

TEST(PartitionChain, AmongTheBestBalancesTheOthers) {
  // The last layer alone is the busiest device; the four before it go two and two.
  const StageCuts cuts = cut_chain(profile_of({1, 1, 1, 1, 10}), {.devices = 3});
  EXPECT_EQ(ends_of(cuts), (std::vector<int>{2, 4, 5}));
}

TEST(PartitionChain, MoreDevicesAreNeverBusier) {
  std::mt19937 random(3);
  const Profile profile = random_profile(random, 60);
  Nanoseconds before = std::numeric_limits<Nanoseconds>::max();
  for (int devices = 1; devices <= 60; ++devices) {
    const StageCuts cuts = cut_chain(profile, {.devices = devices});
    EXPECT_LE(cuts.busiest, before);
    before = cuts.busiest;
  }
}

TEST(PartitionChain, ThousandLayersOnManyDevices) {
  std::mt19937 random(5);
  const Profile profile = random_profile(random, 1000);
  const PartitionOptions options{.devices = 64, .device_memory = 4000, .micro_batches = 128};
  const StageCuts cuts = cut_chain(profile, options);
  EXPECT_TRUE(cuts.exact());
  for (const Use& use : use_of(profile, options, ends_of(cuts), cuts.in_flight)) EXPECT_LE(use.memory, 4000);
}

TEST(PartitionChain, SeveralChunksOnManyDevicesAreNeverBelowTheirBound) {
  std::mt19937 random(6);
  const Profile profile = random_profile(random, 400);
  for (const ChunkLayout layout : {ChunkLayout::looped, ChunkLayout::wave}) {
    const PartitionOptions options{.devices = 16, .chunks = 4, .layout = layout, .micro_batches = 32};
    const StageCuts cuts = cut_chain(profile, options);
    EXPECT_EQ(busiest_of(use_of(profile, options, ends_of(cuts), cuts.in_flight)), cuts.busiest);
    EXPECT_GE(cuts.busiest, cuts.lower_bound);
    // Moving whole layers balances to within one of the longest (here 20).
    EXPECT_LE(cuts.busiest, cuts.lower_bound + 20);
  }
}

TEST(PartitionChain, HoldsFewerInFlightWhereMemoryIsTight) {
  // Four equal layers, one unit kept by each: 1F1B holds 4, 3, 2, 1 of them.
  Profile profile = profile_of({1, 1, 1, 1});
  for (LayerCost& cost : profile.layers) cost.kept = 1;
  PartitionOptions options{.devices = 4, .device_memory = 4, .micro_batches = 8};
  EXPECT_EQ(cut_chain(profile, options).in_flight, 4);
  options.device_memory = 2;
  EXPECT_EQ(cut_chain(profile, options).in_flight, 2);
  options.device_memory = 0;
  EXPECT_THROW(cut_chain(profile, options), InfeasibleError);
}

TEST(PartitionChain, WritesStagesBlocksAndBytes) {
  Profile profile = profile_of({3, 3, 3, 3});
  for (LayerCost& cost : profile.layers) {
    cost.kept = 5;
    cost.input_bytes = 7;
    cost.output_bytes = 7;
    cost.parameters = 2;
    cost.gradients = 2;
    cost.optimizer_state = 4;
    cost.forward_workspace = 1;
    cost.backward_workspace = 6;
  }
  profile.transfers = {{0, 1, {10, 1000}, 0}, {1, 0, {10, 1000}, 0}};
  const Placement p = partition_chain(profile, {.devices = 2, .device_memory = 1000, .micro_batches = 4});
  EXPECT_EQ(p.name, "chain");
  ASSERT_EQ(p.stages.size(), 2u);
  EXPECT_EQ(p.stages[1].layers, (Layers{2, 3}));
  ASSERT_EQ(p.devices.size(), 2u);
  EXPECT_EQ(p.devices[0].static_memory, 16);
  EXPECT_EQ(p.devices[0].memory, 1000);
  EXPECT_EQ(p.devices[0].kind, "cpu");
  EXPECT_EQ(p.link.latency, 10);
  ASSERT_EQ(p.blocks.size(), 4u);
  const Block& forward = p.blocks[p.find_block("s1.F")];
  EXPECT_EQ(forward.time, 6);
  EXPECT_EQ(forward.memory, 17);
  EXPECT_EQ(forward.workspace, 1);
  ASSERT_EQ(forward.after.size(), 1u);
  EXPECT_EQ(forward.after[0].block, p.find_block("s0.F"));
  EXPECT_EQ(forward.after[0].bytes, 7);
  const Block& backward = p.blocks[p.find_block("s0.B")];
  EXPECT_EQ(backward.kind, Kind::backward);
  EXPECT_EQ(backward.time, 12);
  EXPECT_EQ(backward.memory, -17);
  EXPECT_EQ(backward.workspace, 6);
  ASSERT_EQ(backward.after.size(), 2u);
  EXPECT_EQ(backward.after[0].block, p.find_block("s0.F"));
  EXPECT_EQ(backward.after[1].block, p.find_block("s1.B"));
  EXPECT_EQ(backward.after[1].bytes, 7);
}

TEST(PartitionChain, SplitsTheBackward) {
  Profile profile = profile_of({1, 1});
  for (LayerCost& cost : profile.layers) {
    cost.backward_input = {5, 5, 5, 3};
    cost.backward_weight = {4, 4, 4, 3};
    cost.kept = 3;
  }
  const Placement p = partition_chain(profile, {.devices = 2, .split_backward = true});
  const Block& weight = p.blocks[p.find_block("s0.W")];
  EXPECT_EQ(weight.kind, Kind::backward_weight);
  EXPECT_EQ(weight.time, 4);
  EXPECT_EQ(weight.memory, -3);
  ASSERT_EQ(weight.after.size(), 1u);
  EXPECT_EQ(weight.after[0].block, p.find_block("s0.I"));
  EXPECT_EQ(p.blocks[p.find_block("s0.I")].after[1].block, p.find_block("s1.I"));
  EXPECT_EQ(p.blocks[p.find_block("s0.I")].memory, 0);
}

TEST(PartitionChain, KeepsAStageWholeWhoseHalvesWereNotMeasured) {
  Profile profile = profile_of({1, 1, 1, 1});
  for (LayerCost& cost : profile.layers) {
    cost.backward = {10, 10, 10, 3};
    cost.backward_input = {6, 6, 6, 3};
    cost.backward_weight = {5, 5, 5, 3};
  }
  profile.layers[1].backward_input = profile.layers[1].backward_weight = {};
  const PartitionOptions options{.devices = 2, .split_backward = true};
  const StageCuts cuts = cut_chain(profile, options);
  const Placement p = place_stages(profile, options, cuts.stages);
  const Block& whole = p.blocks[p.find_block("s0.B")];
  EXPECT_EQ(whole.kind, Kind::backward);
  EXPECT_EQ(whole.time, 6 + 5 + 10);  // the halves of its other layer are measured one by one
  EXPECT_EQ(whole.after[1].block, p.find_block("s1.I"));
  EXPECT_NE(p.find_block("s1.W"), -1);
  const auto said = whole_backwards(profile, options, cuts.stages);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].stage, 0);
  EXPECT_EQ(said[0].layers, std::vector<int>{1});
  EXPECT_TRUE(whole_backwards(profile, {.devices = 2}, cuts.stages).empty());
  profile.layers[1].backward = {};
  EXPECT_THROW(cut_chain(profile, options), InputError);
}

TEST(PartitionChain, SaysWhichModelItIsFor) {
  Profile profile = profile_of({1, 1});
  const std::string digest(64, 'b');
  const auto facts = [&] { return facts_of(profile, {}, cut_chain(profile, {}).stages); };
  EXPECT_EQ(facts().sha256, "");  // which is no digest there
  profile.model_sha256 = std::string(64, 'a');
  profile.layers[0].digest = digest;
  EXPECT_TRUE(facts().layers.empty());
  profile.layers[1].digest = digest;
  EXPECT_EQ(facts().layers, (std::vector<std::string>{"0:L " + digest, "1:L " + digest}));
  const std::string text = format_placement(partition_chain(profile, {})) + format_model(facts());
  const PlacementFile read = parse_placement(text, "p.toml");
  EXPECT_EQ(read.model.sha256, profile.model_sha256);
  EXPECT_EQ(read.model.layers, facts().layers);
  EXPECT_EQ(text.find("micro_batch_size"), std::string::npos);
}

TEST(PartitionChain, SaysWhichMicroBatchesWereProfiled) {
  Profile profile = profile_of({1, 1});
  profile.micro_batch_size = 12;
  const ModelFacts facts = facts_of(profile, {}, cut_chain(profile, {}).stages);
  const std::string text = format_placement(partition_chain(profile, {})) + format_model(facts);
  EXPECT_EQ(parse_placement(text, "p.toml").model.micro_batch_size, 12);
  const std::string none = std::string(text).replace(text.find("= 12"), 4, "= 0");
  EXPECT_THROW(parse_placement(none, "p.toml"), InputError);
}

TEST(PartitionChain, TheOptimizersStepFits) {
  Profile profile = profile_of({1, 1, 1, 1});
  for (LayerCost& cost : profile.layers) {
    cost.parameters = 100;
    cost.step_together = 30;
    cost.step_alone = 50;
  }
  profile.layers[3].step_alone = 500;
  PartitionOptions options{.devices = 2, .device_memory = 250};
  EXPECT_THROW(cut_chain(profile, options), InfeasibleError);
  options.device_memory = 601;  // the last layer alone
  const StageCuts cuts = cut_chain(profile, options);
  EXPECT_EQ(ends_of(cuts), (std::vector<int>{3, 4}));
  const ModelFacts facts = facts_of(profile, options, cuts.stages);
  EXPECT_EQ(facts.step_memory, (std::vector<Bytes>{90, 500}));
  const Placement placement = place_stages(profile, options, cuts.stages);
  EXPECT_TRUE(step_fits(facts, placement));
  const std::string text = format_placement(placement) + format_model(facts);
  EXPECT_EQ(parse_placement(text, "p.toml").model.step_memory, facts.step_memory);
  std::string tight = text;
  tight.replace(tight.find("[90, 500]"), 9, "[90, 502]");
  EXPECT_THROW(parse_placement(tight, "p.toml"), InputError);
}

TEST(PartitionChain, TheOptimizersStepTakesTime) {
  Profile profile = profile_of({4, 4, 4, 4});
  for (LayerCost& cost : profile.layers) cost.step_time = 7 * (cost.index + 1);
  PartitionOptions options{.devices = 2};
  const auto facts = [&] { return facts_of(profile, options, cut_chain(profile, options).stages); };
  EXPECT_EQ(facts().step_time, (std::vector<Nanoseconds>{21, 49}));
  profile.rank.step_time = 100;  // the engine's, on every rank
  EXPECT_EQ(facts().step_time, (std::vector<Nanoseconds>{121, 149}));
  profile.rank.step_time = 0;
  const std::string text = format_placement(partition_chain(profile, options)) + format_model(facts());
  EXPECT_EQ(parse_placement(text, "p.toml").model.step_time, facts().step_time);
  for (const char* wrong : {"[21]", "[21, -1]", "[21, 49, 0]", "[21, 9223372036854775807]"}) {
    std::string other = text;
    other.replace(other.find("[21, 49]"), 8, wrong);
    EXPECT_THROW(parse_placement(other, "p.toml"), InputError) << wrong;
  }
  options.sharded = {0};  // on both devices
  EXPECT_EQ(facts().step_time[0] + facts().step_time[1], 4 + 4 + 14 + 21 + 28);
  options.sharded = {};
  options.inference = true;
  EXPECT_TRUE(facts().step_time.empty());
}

TEST(PartitionChain, MessagesAndBucketsCount) {
  constexpr Bytes kMessage = 100'000;
  Profile profile = profile_of({1, 1, 1});
  profile.rank = {.held = 1000, .step = 700, .buffers = 2};
  for (LayerCost& cost : profile.layers) {
    cost.input_bytes = cost.output_bytes = cost.sent = kMessage;
    cost.parameters = 10;
    cost.kept = 5;
    cost.forward_workspace = cost.backward_workspace = 3 * kMessage;
    cost.step_together = 1600;
  }
  profile.layers[2].labels = 7;
  PartitionOptions options{.devices = 3};
  const Placement p = partition_chain(profile, options);
  // Two buffers, and a gradient that was sent; the first stage receives gradients alone, the last
  // activations.
  EXPECT_EQ(p.devices[0].static_memory, 10 + 1000 + 2 * kMessage);
  EXPECT_EQ(p.devices[1].static_memory, 10 + 1000 + 3 * kMessage);
  EXPECT_EQ(p.devices[2].static_memory, 10 + 1000 + 3 * kMessage);
  EXPECT_EQ(facts_of(profile, options, cut_chain(profile, options).stages).step_memory[0], 700);
  const auto block = [&](const char* name) { return p.blocks[p.find_block(name)]; };
  // An output is held until its gradient comes; the batch that was read, beside its copy.
  EXPECT_EQ(block("s0.F").memory, 5 + kMessage + kMessage);
  EXPECT_EQ(block("s0.F").workspace, 2 * kMessage + kMessage);
  EXPECT_EQ(block("s1.F").workspace, 2 * kMessage);
  EXPECT_EQ(block("s1.B").workspace, 2 * kMessage);
  EXPECT_EQ(block("s2.F").memory, 5 + 7 + kMessage);
  EXPECT_EQ(block("s2.B").workspace, 3 * kMessage);
  const auto least = [&](Bytes memory) {
    options.device_memory = memory;
    return cut_chain(profile, options).stages.size();
  };
  options.micro_batches = 1;
  const Bytes needed = 10 + 1000 + 3 * kMessage + 5 + 7 + kMessage + 3 * kMessage;  // of the last stage
  EXPECT_EQ(least(needed), 3U);
  EXPECT_THROW(least(needed - 1), InfeasibleError);
  profile.rank.step = 9 * kMessage;
  EXPECT_THROW(least(needed), InfeasibleError);
  profile.rank.buffers = 0;  // as older profiles
  profile.rank = {};
  EXPECT_EQ(partition_chain(profile, {.devices = 3}).devices[1].static_memory, 10);
}

TEST(PartitionChain, StagesOfOneDeviceHandOnWithoutMessages) {
  constexpr Bytes kMessage = 100'000;
  Profile profile = profile_of({1, 1, 1, 1});
  profile.rank.buffers = 2;
  for (LayerCost& cost : profile.layers) cost.input_bytes = cost.output_bytes = kMessage;
  const PartitionOptions wave{.devices = 2, .chunks = 2, .layout = ChunkLayout::wave};
  const Placement p = partition_chain(profile, wave);
  EXPECT_EQ(p.devices[0].static_memory, 3 * kMessage);
  const auto workspace = [&](const char* name) { return p.blocks[p.find_block(name)].workspace; };
  EXPECT_EQ(workspace("s2.F"), kMessage);  // what it copies
  EXPECT_EQ(workspace("s1.B"), kMessage);
  EXPECT_EQ(workspace("s1.F"), 0);
}

TEST(PartitionChain, GradientsWaitBetweenTheHalves) {
  Profile profile = profile_of({1, 1});
  for (LayerCost& cost : profile.layers) {
    cost.backward_input = {5, 5, 5, 3};
    cost.backward_weight = {4, 4, 4, 3};
    cost.kept = 3;
    cost.waiting = 7;
    cost.weight_workspace = 4;
  }
  const Placement p = partition_chain(profile, {.devices = 2, .split_backward = true});
  EXPECT_EQ(p.blocks[p.find_block("s0.I")].memory, 7);
  EXPECT_EQ(p.blocks[p.find_block("s0.W")].memory, -10);
  EXPECT_EQ(p.blocks[p.find_block("s0.W")].workspace, 4);  // while all of that still waits
}

TEST(PartitionChain, LaysChunksOutLoopedAndAsAWave) {
  const Profile profile = profile_of({1, 1, 1, 1});
  PartitionOptions options{.devices = 2, .chunks = 2, .layout = ChunkLayout::wave};
  EXPECT_EQ(partition_chain(profile, options).blocks[2].devices, std::vector<int>{1});
  options.layout = ChunkLayout::looped;
  EXPECT_EQ(partition_chain(profile, options).blocks[2].devices, std::vector<int>{0});
}

TEST(PartitionChain, GivesASlowPairItsOwnLink) {
  Profile profile = profile_of({1, 1, 1});
  profile.transfers = {
      {0, 1, {100, 1'000'000}, 0}, {1, 2, {100, 1'000'000}, 0}, {0, 2, {100, 100'000}, 0}, {7, 8, {1, 1}, 0}};
  const Placement p = partition_chain(profile, {.devices = 3});
  EXPECT_EQ(p.link.bytes_per_second, 100'000);
  EXPECT_EQ(p.links.size(), 2u);
  EXPECT_EQ(p.link_between(0, 1).bytes_per_second, 1'000'000);
  EXPECT_EQ(partition_chain(profile, {.devices = 3, .transfers = false}).link.latency, 0);
}

void expect_refused(const Profile& profile, const PartitionOptions& options, const std::string& message) {
  try {
    partition_chain(profile, options);
    ADD_FAILURE() << "not refused: " << message;
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(message));
  }
}

TEST(PartitionChain, RefusesWhatCannotBe) {
  Profile profile = profile_of({1, 1, 1});
  expect_refused(profile, {.devices = 2, .chunks = 2}, "need at least 4 layers, the model has 3");
  expect_refused(profile, {.devices = 0}, "number of devices");
  expect_refused(profile, {.chunks = 0}, "number of chunks");
  expect_refused(profile, {.micro_batches = 0}, "at least 1 micro-batch");
  profile.layers[1].backward_input.repeats = profile.layers[1].backward_weight.repeats = 3;
  expect_refused(profile, {},
                 "the halves of the backward of layer 1:L take no time, but the whole takes 2 ns");
  profile.layers[1].forward.repeats = 0;
  expect_refused(profile, {}, "the forward of layer 1:L was not measured");
  profile.completeness = {false, 10, 9, 1, 0, "1 launch dropped"};
  expect_refused(profile, {}, "1 launch dropped");
}

TEST(PartitionChain, ProvesWhatDoesNotFit) {
  Profile profile = profile_of({1, 1, 1});
  profile.layers[2].parameters = 100;
  try {
    partition_chain(profile, {.devices = 2, .device_memory = 99});
    FAIL();
  } catch (const InfeasibleError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("layer 2:L alone needs 100 B"));
  }
}

TEST(PartitionChain, AcceptsAnIncompleteProfileWhenTold) {
  Profile profile = profile_of({1, 1});
  profile.completeness = {false, 10, 9, 1, 0, "1 launch dropped"};
  EXPECT_EQ(partition_chain(profile, {.devices = 2, .allow_incomplete = true}).stages.size(), 2u);
}

}  // namespace
}  // namespace ostinato
