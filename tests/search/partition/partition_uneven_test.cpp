// SPDX-License-Identifier: Apache-2.0
// Uneven devices, sharded layers and recomputation in the chain partition, against brute force.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>

#include "search/files/error.h"
#include "search/partition/chain.h"
#include "search/partition/stages.h"
#include "search/placement/placement_toml.h"
#include "tests/search/checked.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

using test::profile_of;
using test::random_profile;
using test::time_of;

/// 'f': as fast as the profile; 's': at half its speed.
Cluster uneven(const std::string& order, Bytes fast_memory = kUnlimited, Bytes slow_memory = kUnlimited) {
  Cluster cluster;
  cluster.kinds.resize(2);
  cluster.kinds[0].memory = fast_memory;
  cluster.kinds[1] = {
      .name = "slow", .memory = slow_memory, .speed = kUsualSpeed / 2, .profile_path = "", .profile = {}};
  cluster.nodes.emplace_back();
  for (const char c : order) cluster.devices.push_back({c == 's' ? 1 : 0, 0});
  return cluster;
}

/// Visits the ends of every partition of `layers` layers into `stages` stages.
void every_partition(int layers, int stages, const std::function<void(const std::vector<int>&)>& visit,
                     std::vector<int> ends = {}) {
  const int first = ends.empty() ? 0 : ends.back();
  if (static_cast<int>(ends.size()) + 1 == stages) {
    ends.push_back(layers);
    return visit(ends);
  }
  for (int end = first + 1; end < layers; ++end) {
    std::vector<int> longer = ends;
    longer.push_back(end);
    every_partition(layers, stages, visit, longer);
  }
}

Nanoseconds sum(const Profile& profile, int first, int end) {
  Nanoseconds time = 0;
  for (int l = first; l < end; ++l) time += time_of(profile.layers[l]);
  return time;
}

TEST(PartitionUneven, AgreesWithEveryOrderOfKindsAndEveryPartition) {
  std::mt19937 random(17);
  for (int round = 0; round < 60; ++round) {
    const std::string kinds = std::string("fsfss").substr(0, 2 + random() % 4);
    const int devices = static_cast<int>(kinds.size());
    const Profile profile = random_profile(random, devices + static_cast<int>(random() % 4));
    Nanoseconds best = std::numeric_limits<Nanoseconds>::max();
    std::string order = kinds;
    std::sort(order.begin(), order.end());
    do {
      every_partition(static_cast<int>(profile.layers.size()), devices, [&](const std::vector<int>& ends) {
        Nanoseconds busiest = 0;
        for (int s = 0, first = 0; s < devices; first = ends[s++])
          busiest = std::max(busiest, sum(profile, first, ends[s]) * (order[s] == 's' ? 2 : 1));
        best = std::min(best, busiest);
      });
    } while (std::next_permutation(order.begin(), order.end()));
    PartitionOptions options;
    options.cluster = uneven(kinds);
    const StageCuts cuts = cut_chain(profile, options);
    EXPECT_EQ(cuts.busiest, best) << kinds;
    EXPECT_TRUE(cuts.exact());
    // The cuts are as busy as they say.
    const Placement placement = place_stages(profile, options, cuts.stages);
    std::vector<Nanoseconds> busy(kinds.size(), 0);
    for (const Block& block : placement.blocks) busy[block.devices.front()] += block.time;
    EXPECT_EQ(*std::max_element(busy.begin(), busy.end()), best);
  }
}

TEST(PartitionUneven, PutsWhatNeedsMemoryOnTheDevicesThatHaveIt) {
  Profile profile = profile_of({1, 1, 1});
  profile.layers[1].parameters = 100;
  PartitionOptions options;
  options.cluster = uneven("fss", 100, 10);
  EXPECT_EQ(cut_chain(profile, options).stages[1].devices, std::vector<int>{0});
}

TEST(PartitionShard, SplitsTimeAndMemoryAndPaysForTheAllReduce) {
  Profile profile = profile_of({12, 3, 3, 3, 3});
  profile.layers[0].parameters = 100;
  profile.layers[0].kept = 10;
  profile.layers[0].input_bytes = 4;
  profile.layers[0].output_bytes = 400;
  profile.transfers = {{0, 1, {5, 1'000'000'000}, 0}};  // a byte a nanosecond
  const PartitionOptions options{.devices = 4, .micro_batches = 8, .sharded = {0}};
  const StageCuts cuts = cut_chain(profile, options);
  ASSERT_EQ(cuts.stages.size(), 5u);
  EXPECT_EQ(cuts.stages[0].devices, (std::vector<int>{0, 1, 2, 3}));
  const Placement p = place_stages(profile, options, cuts.stages);
  const Block& forward = p.blocks[p.find_block("s0.F")];
  EXPECT_EQ(forward.time, 12 / 4 + 2 * 3 * (5 + 100));  // 6 steps of a quarter of the output
  EXPECT_EQ(forward.memory, 3 + 4);                     // a quarter of what is kept, and the input
  EXPECT_EQ(p.blocks[p.find_block("s0.B")].time, 24 / 4 + 2 * 3 * (5 + 1));
  for (const Device& device : p.devices) EXPECT_EQ(device.static_memory, 25);
  EXPECT_EQ(cuts.busiest, forward.time + p.blocks[p.find_block("s0.B")].time + 9);
}

TEST(PartitionShard, AgreesWithEveryPartitionAroundAShardInTheMiddle) {
  std::mt19937 random(23);
  for (int round = 0; round < 80; ++round) {
    const int devices = 2 + static_cast<int>(random() % 3);
    const int layers = devices + 1 + static_cast<int>(random() % 5);
    const Profile profile = random_profile(random, layers);
    const int shard = static_cast<int>(random() % static_cast<unsigned>(layers));
    const Nanoseconds part = (profile.layers[shard].forward.median + devices - 1) / devices +
                             (profile.layers[shard].backward.median + devices - 1) / devices;
    std::optional<Nanoseconds> best;
    every_partition(layers - 1, devices, [&](const std::vector<int>& ends) {
      Nanoseconds busiest = 0;
      for (int s = 0, first = 0; s < devices; first = ends[s++]) {
        if (first < shard && shard < ends[s]) return;  // the shard would stand inside the stage
        const bool behind = first >= shard;
        busiest = std::max(busiest, sum(profile, first + behind, ends[s] + behind));
      }
      if (!best || busiest + part < *best) best = busiest + part;
    });
    const PartitionOptions options{.devices = devices, .micro_batches = 4, .sharded = {shard}};
    const StageCuts cuts = cut_chain(profile, options);
    EXPECT_EQ(cuts.busiest, best) << "round " << round;
    EXPECT_EQ(cuts.stages.size(), static_cast<std::size_t>(devices) + 1);
    int next = 0;
    for (const Stage& stage : cuts.stages) {
      for (const int l : stage.layers) EXPECT_EQ(l, next++);
    }
  }
}

TEST(PartitionShard, SeveralChunksStandAroundIt) {
  const Profile profile = profile_of(std::vector<Nanoseconds>(13, 2));
  for (const ChunkLayout layout : {ChunkLayout::looped, ChunkLayout::wave}) {
    const PartitionOptions options{
        .devices = 3, .chunks = 2, .layout = layout, .micro_batches = 6, .sharded = {6}};
    const Placement p = partition_chain(profile, options);
    EXPECT_EQ(p.stages.size(), 7u);
    test::expect_holds(test::searched(p, 4), p);
  }
}

TEST(PartitionShard, MoreBandwidthIsNeverBusier) {
  std::mt19937 random(29);
  for (int round = 0; round < 20; ++round) {
    Profile profile = random_profile(random, 9);
    for (LayerCost& cost : profile.layers) cost.output_bytes = 50 + static_cast<Bytes>(random() % 100);
    Nanoseconds before = std::numeric_limits<Nanoseconds>::max();
    for (const std::int64_t bandwidth : std::vector<std::int64_t>{100, 1000, 10'000}) {
      profile.transfers = {{0, 1, {1, bandwidth * 1'000'000}, 0}};
      const StageCuts cuts = cut_chain(profile, {.devices = 4, .micro_batches = 8, .sharded = {0, 8}});
      EXPECT_LE(cuts.busiest, before);
      before = cuts.busiest;
    }
  }
}

TEST(PartitionShard, RefusesALayerThatDoesNotExistAndTooFewOthers) {
  EXPECT_THROW(cut_chain(profile_of({1, 1}), {.sharded = {2}}), InputError);
  EXPECT_THROW(cut_chain(profile_of({1, 1}), {.devices = 2, .sharded = {0}}), InputError);
}

/// Four equal layers that each keep 10 bytes beside an input of 1.
Profile keeping() {
  Profile profile = profile_of({2, 2, 2, 2});
  for (LayerCost& cost : profile.layers) {
    cost.kept = 10;
    cost.input_bytes = 1;
  }
  return profile;
}

TEST(PartitionRecompute, OnlyTheStagesThatNeedIt) {
  // 1F1B holds 4, 3, 2, 1 micro-batches: 44, 33, 22, 11 bytes. Recomputing, they hold 4 + 10 and 3 + 10.
  const PartitionOptions options{
      .devices = 4, .device_memory = 25, .micro_batches = 8, .recompute = Recompute::needed};
  const StageCuts cuts = cut_chain(keeping(), options);
  EXPECT_EQ(cuts.in_flight, 4);
  EXPECT_TRUE(cuts.stages[0].recompute);
  EXPECT_TRUE(cuts.stages[1].recompute);
  EXPECT_FALSE(cuts.stages[2].recompute);
  EXPECT_FALSE(cuts.stages[3].recompute);
  EXPECT_EQ(cuts.busiest, 8);  // 2 forward, 2 again, 4 backward
  const Placement p = place_stages(keeping(), options, cuts.stages);
  EXPECT_EQ(p.blocks[p.find_block("s0.F")].memory, 1);
  EXPECT_EQ(p.blocks[p.find_block("s0.B")].time, 6);
  EXPECT_EQ(p.blocks[p.find_block("s0.B")].workspace, 10);
  const Placement read = parse_placement(format_placement(p), "p.toml").placement;
  EXPECT_TRUE(read.stages[0].recompute);
  EXPECT_FALSE(read.stages[3].recompute);
  test::expect_holds(test::searched(p, 8), p);
}

TEST(PartitionRecompute, AlwaysAndNever) {
  PartitionOptions options{.devices = 2, .micro_batches = 4, .recompute = Recompute::always};
  for (const Stage& stage : cut_chain(keeping(), options).stages) EXPECT_TRUE(stage.recompute);
  options.chunks = 2;
  for (const Stage& stage : cut_chain(keeping(), options).stages) EXPECT_TRUE(stage.recompute);
  options.recompute = Recompute::needed;  // memory is not short
  for (const Stage& stage : cut_chain(keeping(), options).stages) EXPECT_FALSE(stage.recompute);
}

TEST(PartitionRecompute, OfSeveralChunksThoseKeepForWhichThereIsRoom) {
  // Keeping all: 44 + 22 bytes on device 0, 33 + 11 on device 1. The first chunks recompute: 4 + 10 + 22, 3 +
  // 10 + 11.
  const PartitionOptions options{
      .devices = 2, .chunks = 2, .device_memory = 40, .micro_batches = 8, .recompute = Recompute::needed};
  const StageCuts cuts = cut_chain(keeping(), options);
  ASSERT_EQ(cuts.stages.size(), 4u);
  EXPECT_TRUE(cuts.stages[0].recompute);
  EXPECT_TRUE(cuts.stages[1].recompute);
  EXPECT_FALSE(cuts.stages[2].recompute);
  EXPECT_FALSE(cuts.stages[3].recompute);
  EXPECT_EQ(cuts.busiest, 14);
  EXPECT_LE(cuts.lower_bound, cuts.busiest);
  const Placement p = place_stages(keeping(), options, cuts.stages);
  test::expect_holds(test::searched(p, 8), p);
}

TEST(PartitionRecompute, ASplitBackwardHoldsWhatWasComputedAgain) {
  Profile profile = keeping();
  for (LayerCost& cost : profile.layers) cost.backward_input = cost.backward_weight = {2, 2, 2, 3};
  const PartitionOptions options{
      .devices = 2, .micro_batches = 4, .split_backward = true, .recompute = Recompute::always};
  const Placement p = partition_chain(profile, options);
  EXPECT_EQ(p.blocks[p.find_block("s0.F")].memory, 1);
  EXPECT_EQ(p.blocks[p.find_block("s0.I")].memory, 20);
  EXPECT_EQ(p.blocks[p.find_block("s0.W")].memory, -21);
  test::expect_holds(test::searched(p, 4), p);
}

TEST(PartitionRecompute, InPartNoMoreLayersThanItTakes) {
  // As above with two layers a stage; keeping all of them holds 44, 33, 22, 11 bytes;
  // one of them, 4 + 24 + 5 on the first device.
  Profile profile = profile_of({2, 2, 2, 2, 2, 2, 2, 2});
  for (LayerCost& cost : profile.layers) {
    cost.kept = 5;
    cost.input_bytes = 1;
  }
  PartitionOptions options{
      .devices = 4, .device_memory = 35, .micro_batches = 8, .recompute = Recompute::partly};
  const StageCuts cuts = cut_chain(profile, options);
  EXPECT_EQ(cuts.in_flight, 4);
  EXPECT_EQ(cuts.busiest, 14);  // 12 and one forward again
  ASSERT_EQ(cuts.stages.size(), 5u);
  EXPECT_TRUE(cuts.stages[0].recompute);
  for (const int s : {1, 2, 3, 4}) EXPECT_FALSE(cuts.stages[s].recompute);
  EXPECT_EQ(cuts.stages[0].devices, cuts.stages[1].devices);
  options.recompute = Recompute::needed;
  EXPECT_EQ(cut_chain(profile, options).busiest, 16);
  const Placement p = place_stages(profile, options, cuts.stages);
  test::expect_holds(test::searched(p, 8), p);
}

/// The least max(busiest, ceil(chain / cap)) over every cut, every number of layers recomputed at the front
/// of each stage, and every cap; layers have no workspace.
Nanoseconds least_period(const Profile& profile, const PartitionOptions& options) {
  const int layers = static_cast<int>(profile.layers.size());
  const Nanoseconds chain = sum(profile, 0, layers);
  Nanoseconds least = std::numeric_limits<Nanoseconds>::max();
  for (int cap = 1; cap <= std::min(options.devices, options.micro_batches); ++cap) {
    every_partition(layers, options.devices, [&](const std::vector<int>& ends) {
      Nanoseconds busiest = 0;
      for (int s = 0, first = 0; s < options.devices; first = ends[s++]) {
        const int in_flight = std::min(options.devices - s, cap);
        Nanoseconds quickest = std::numeric_limits<Nanoseconds>::max();
        for (int from = first; from <= ends[s]; ++from) {  // the first that keeps
          Nanoseconds time = 0;
          Bytes kept = 0, again = 0;
          for (int l = first; l < ends[s]; ++l) {
            const LayerCost& layer = profile.layers[l];
            time += time_of(layer) + (l < from ? layer.recompute.value_or(layer.forward.median) : 0);
            (l < from ? again : kept) += layer.kept;
            if (l == first || l == from) kept += layer.input_bytes;
          }
          // With one micro-batch in flight, the second part keeps nothing yet while the first runs.
          const Bytes first_input = profile.layers[first].input_bytes;
          const Bytes needed = cap > 1 || from == first || from == ends[s]
                                   ? kept * in_flight + again
                                   : std::max(kept, first_input + again);
          if (needed <= options.device_memory) quickest = std::min(quickest, time);
        }
        busiest = std::max(busiest, quickest);
      }
      least = std::min(least, std::max(busiest, (chain + cap - 1) / cap));
    });
  }
  return least;
}

TEST(PartitionRecompute, InPartAgreesWithEveryPartition) {
  std::mt19937 random(77);
  int recomputed = 0;
  for (int round = 0; round < 200; ++round) {
    Profile profile = random_profile(random, 4 + static_cast<int>(random() % 4));
    Bytes kept = 0;
    for (LayerCost& layer : profile.layers) {
      layer.forward_workspace = layer.backward_workspace = 0;
      layer.parameters = layer.gradients = layer.optimizer_state = 0;
      layer.input_bytes = static_cast<Bytes>(random() % 4);
      if (random() % 3 == 0) layer.recompute = static_cast<Nanoseconds>(random() % 5);
      kept += layer.kept + layer.input_bytes;
    }
    PartitionOptions options{.devices = 2 + static_cast<int>(random() % 2), .recompute = Recompute::partly};
    options.transfers = false;
    options.micro_batches = 1 + static_cast<int>(random() % 4);
    options.device_memory = 1 + static_cast<Bytes>(random() % static_cast<std::uint64_t>(kept));
    const Nanoseconds least = least_period(profile, options);
    SCOPED_TRACE(fmt::format("round {}", round));
    try {
      const StageCuts cuts = cut_chain(profile, options);
      const Nanoseconds chain = sum(profile, 0, static_cast<int>(profile.layers.size()));
      EXPECT_EQ(std::max(cuts.busiest, (chain + cuts.in_flight - 1) / cuts.in_flight), least);
      recomputed += std::any_of(cuts.stages.begin(), cuts.stages.end(), [](auto& s) { return s.recompute; });
    } catch (const InfeasibleError&) {
      EXPECT_EQ(least, std::numeric_limits<Nanoseconds>::max());
    }
  }
  EXPECT_GE(recomputed, 40);
}

/// In the estimate of chain.h, what fits a device with one micro-batch in flight fits in every schedule.
TEST(PartitionRecompute, EveryPlanHoldsItsMemory) {
  std::mt19937 random(31);
  int found = 0;
  for (int round = 0; round < 40; ++round) {
    const Profile profile = random_profile(random, 8);
    PartitionOptions options{.devices = 3, .device_memory = 60 + static_cast<Bytes>(random() % 200)};
    options.micro_batches = 4;
    options.recompute = round % 3 ? Recompute::needed : Recompute::partly;
    options.sharded = round % 2 ? std::vector<int>{0} : std::vector<int>{};
    try {
      const Placement p = partition_chain(profile, options);
      test::expect_holds(test::searched(p, 4), p);
      ++found;
    } catch (const InfeasibleError&) {
      // Proved not to fit: nothing to check.
    }
  }
  EXPECT_GT(found, 20);
}

}  // namespace
}  // namespace ostinato
