// SPDX-License-Identifier: Apache-2.0
// Stages for a short latency: branches side by side, never behind the stages that balance the devices.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "search/files/error.h"
#include "search/partition/joint.h"
#include "search/partition/latency.h"
#include "search/partition/stages.h"
#include "tests/search/checked.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

/// Of one micro-batch on these stages, as searched and checked.
Nanoseconds latency_on(const Profile& profile, const PartitionOptions& options, const StageCuts& cuts) {
  const Placement placement = place_stages(profile, options, cuts.stages);
  const Plan plan = test::searched(placement, 1);
  test::expect_holds(plan, placement);
  return plan.makespan;
}

std::set<int> devices_of(const StageCuts& cuts) {
  std::set<int> devices;
  for (const Stage& stage : cuts.stages) devices.insert(stage.devices.front());
  return devices;
}

/// The same two branches with their layers in turn: those of one branch are no run.
Profile interleaved(int each, Nanoseconds time) {
  Profile profile = test::two_branches(each, 1, time, 8);
  for (int l = 0; l < 2 * each; ++l) {
    profile.layers[l].after.emplace();
    if (l >= 2) profile.layers[l].after->push_back({l - 2, 8});
  }
  profile.layers[2 * each].after = {{2 * each - 2, 8}, {2 * each - 1, 8}};
  return profile;
}

/// The least latency over every assignment of layers to devices, each layer a stage of its own.
Nanoseconds brute_force(const Profile& profile, const PartitionOptions& options, bool all_devices) {
  const int layers = static_cast<int>(profile.layers.size());
  std::vector<Stage> stages(layers);
  Nanoseconds best = std::numeric_limits<Nanoseconds>::max();
  std::vector<int> device(stages.size(), 0);
  for (;;) {
    if (!all_devices ||
        std::set<int>(device.begin(), device.end()).size() == static_cast<std::size_t>(options.devices)) {
      for (int l = 0; l < layers; ++l) stages[l] = {.layers = {l}, .devices = {device[l]}};
      best = std::min(best, test::searched(place_stages(profile, options, stages), 1).makespan);
    }
    int l = 0;
    while (l < layers && ++device[l] == options.devices) device[l++] = 0;
    if (l == layers) return best;
  }
}

TEST(PartitionLatency, TwoBranchesRunBesideEachOther) {
  for (const bool in_turn : {false, true}) {
    const Profile profile = in_turn ? interleaved(3, 5) : test::two_branches(3, 1, 5, 8);
    const PartitionOptions options{.devices = 2, .micro_batches = 4};
    const StageCuts cuts = cut_for_latency(profile, options, true);
    EXPECT_EQ(latency_on(profile, options, cuts), 4 * 15);  // the longest path, there and back
    EXPECT_LE(cuts.stages.size(), 3u);
  }
}

TEST(PartitionLatency, IsNearTheBestOfEveryAssignment) {
  std::mt19937 random(61);
  int met = 0;
  constexpr int kRounds = 24;
  for (int round = 0; round < kRounds; ++round) {
    Profile profile = test::random_profile(random, 5);
    for (int l = 1; l < 5; ++l) {
      profile.layers[l].after.emplace();
      for (int from = 0; from < l; ++from)
        if (random() % 2) profile.layers[l].after->push_back({from, 1 + static_cast<Bytes>(random() % 8)});
    }
    profile.transfers = {{0, 1, {1, 1'000'000'000}, 0}, {1, 0, {1, 1'000'000'000}, 0}};
    const PartitionOptions options{.devices = 2, .micro_batches = 2};
    const bool all_devices = round % 2 == 0;
    const StageCuts cuts = cut_for_latency(profile, options, all_devices);
    if (all_devices) {
      EXPECT_EQ(devices_of(cuts).size(), 2u);
    }
    const Nanoseconds best = brute_force(profile, options, all_devices),
                      found = latency_on(profile, options, cuts);
    EXPECT_GE(found, best);
    met += found == best ? 1 : 0;
  }
  EXPECT_GE(met, kRounds * 2 / 3) << met;
}

TEST(PartitionLatency, MemoryDecides) {
  Profile profile = test::two_branches(2, 0, 5);
  for (LayerCost& cost : profile.layers) cost.parameters = 10;
  const PartitionOptions options{.devices = 2, .device_memory = 25, .micro_batches = 1};
  const StageCuts cuts = cut_for_latency(profile, options, true);
  EXPECT_EQ(devices_of(cuts).size(), 2u);
  test::expect_holds(test::searched(place_stages(profile, options, cuts.stages), 1),
                     place_stages(profile, options, cuts.stages));
  PartitionOptions small = options;
  small.device_memory = 15;
  EXPECT_THROW(cut_for_latency(profile, small, true), InputError);
}

TEST(PartitionLatency, AFasterDeviceTakesTheChain) {
  const Profile profile = test::profile_of({4, 4, 4});
  PartitionOptions options{.devices = 2, .micro_batches = 1};
  options.cluster = alike(2, kUnlimited);
  options.cluster->kinds.emplace_back(options.cluster->kinds[0]).speed = 2 * kUsualSpeed;
  options.cluster->devices[1].kind = 1;
  const StageCuts cuts = cut_for_latency(profile, options, false);
  EXPECT_EQ(devices_of(cuts), std::set<int>{1});
  EXPECT_EQ(latency_on(profile, options, cuts), 3 * (2 + 4));
}

TEST(PartitionLatency, RefusesWhatCannotBe) {
  const Profile profile = test::profile_of({1, 1});
  EXPECT_THROW(cut_for_latency(profile, {.devices = 3}, true), InputError);
  EXPECT_EQ(cut_for_latency(profile, {.devices = 3}, false).stages.size(), 1u);
  const Profile long_one = test::profile_of(std::vector<Nanoseconds>(kMostLatencyLayers + 1, 1));
  EXPECT_THROW(cut_for_latency(long_one, {.devices = 2}, true), InputError);
}

TEST(PartitionLatency, TheJointChoiceTakesThem) {
  JointOptions options;
  options.partition.devices = 2;
  options.partition.micro_batches = options.search.micro_batches = 3;
  options.search.time_limit_seconds = 0;
  options.search.objective = Objective::latency;
  options.fewer_devices = FewerDevices::none;
  const JointChoice choice = choose_plan(interleaved(3, 5), options);
  const Candidate& best = choice.candidates[choice.winner];
  EXPECT_EQ(best.value(), 4 * 15);
  test::expect_holds(*best.plan, *best.placement);
}

TEST(PartitionLatency, StagesThatAreNoRunsSayTheirLayers) {
  const Profile profile = interleaved(3, 5);
  const PartitionOptions options{.devices = 2, .micro_batches = 1};
  const Placement placement = place_stages(profile, options, cut_for_latency(profile, options, true).stages);
  std::vector<int> layers;
  bool several = false;
  for (const Stage& stage : placement.stages) {
    several = several || stage.layers.runs().size() > 1;
    layers.insert(layers.end(), stage.layers.begin(), stage.layers.end());
  }
  EXPECT_TRUE(several);
  std::sort(layers.begin(), layers.end());
  EXPECT_EQ(layers, (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace ostinato
