// SPDX-License-Identifier: Apache-2.0
// Pipelines beside each other: the number of them that makes a step shortest.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "search/checker/any_placement.h"
#include "search/files/error.h"
#include "search/partition/degrees.h"
#include "search/placement/placement_toml.h"
#include "search/simulate/simulate.h"
#include "tests/search/partition/joint_options.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

using test::profile_of;
using testing::HasSubstr;

JointOptions options_for(int devices, int micro_batches, int replicas = kAnyReplicas) {
  JointOptions options = test::joint_options(devices, micro_batches);
  options.replicas = replicas;
  options.restrictions.push_back({Rule::most_chunks, "", 2});
  return options;
}

/// Eight layers of 1 us forward and 2 us backward, with gradients of a megabyte each.
Profile eight_layers() {
  Profile profile = profile_of(std::vector<Nanoseconds>(8, 1000));
  for (LayerCost& layer : profile.layers) {
    layer.gradients = layer.parameters = 1'000'000;
    layer.kept = 1000;
  }
  return profile;
}

/// The same in slices: half the memory, and 5 % more than half of the time.
Profile eight_slices(int slices) {
  Profile profile = eight_layers();
  profile.slices = slices;
  for (LayerCost& layer : profile.layers) {
    layer.forward = {1050 / slices, 1050 / slices, 1050 / slices, 5};
    layer.backward = {2100 / slices, 2100 / slices, 2100 / slices, 5};
    layer.gradients = layer.parameters = 1'000'000 / slices;
  }
  return profile;
}

JointOptions sliced(JointOptions options, int slices = kAnySlices) {
  options.slices = slices;
  return options;
}

std::vector<std::pair<int, int>> shapes(const DegreeChoice& choice) {
  std::vector<std::pair<int, int>> result;
  for (const Degree& degree : choice.degrees) result.emplace_back(degree.pipeline, degree.replicas);
  return result;
}

TEST(Degrees, AreThoseThatDivideDevicesAndMicroBatches) {
  const DegreeChoice choice = choose_degree(eight_layers(), options_for(4, 6));
  EXPECT_EQ(shapes(choice), (std::vector<std::pair<int, int>>{{2, 2}, {4, 1}}));
  EXPECT_EQ(choice.degrees[0].options.search.micro_batches, 3);
}

TEST(Degrees, WithoutReplicasThePlanIsThatOfThePipelineAlone) {
  const Profile profile = eight_layers();
  const DegreeChoice choice = choose_degree(profile, options_for(4, 8, 1));
  JointOptions alone = options_for(4, 8, 1);
  const JointChoice joint = choose_plan(profile, alone);
  ASSERT_EQ(choice.degrees.size(), 1u);
  EXPECT_EQ(choice.best().step(), joint.candidates[joint.winner].value());
  EXPECT_EQ(choice.best().winner().plan->schedule, joint.candidates[joint.winner].plan->schedule);
}

TEST(Degrees, FreeSumsMakeReplicasAlone) {
  // No link costs anything, so nothing speaks for a pipeline: 8 micro-batches of 24 us on 4 devices.
  const DegreeChoice choice = choose_degree(eight_layers(), options_for(4, 8));
  EXPECT_EQ(choice.best().replicas, 4);
  EXPECT_EQ(choice.best().step(), 2 * 24'000);
}

TEST(Degrees, SlowSumsMakeOnePipeline) {
  Profile profile = eight_layers();
  profile.transfers = {{0, 1, {0, 1'000'000'000}, 0}};  // 1 GB/s: a megabyte takes 1 ms
  const DegreeChoice choice = choose_degree(profile, options_for(4, 8));
  EXPECT_EQ(choice.best().replicas, 1);
  EXPECT_EQ(choice.best().all_reduce, 0);
}

TEST(Degrees, TheOptimizersStepCounts) {
  Profile profile = eight_layers();
  for (LayerCost& layer : profile.layers) layer.step_time = 100'000;
  const DegreeChoice choice = choose_degree(profile, options_for(4, 8));
  EXPECT_EQ(choice.best().replicas, 1);
  EXPECT_EQ(choice.best().optimizer(), 2 * 100'000);
  EXPECT_EQ(choice.best().step(), choose_degree(profile, options_for(4, 8, 1)).best().step());
}

/// Memory of the fullest device.
Bytes most_static(const Profile& profile, int devices, int replicas) {
  const DegreeChoice choice = choose_degree(profile, options_for(devices, 8, replicas));
  const auto& on = choice.best().winner().placement->devices;
  return std::ranges::max_element(on, {}, &Device::static_memory)->static_memory;
}

TEST(Degrees, ZeroDividesTheOptimizersStateOverReplicas) {
  Profile profile = eight_layers();
  for (LayerCost& layer : profile.layers) {
    layer.optimizer_state = 1'000'001;
    layer.step_time = 100;
  }
  const Bytes whole = most_static(profile, 2, 1);
  EXPECT_EQ(whole, 4 * (2'000'000 + 1'000'001));
  EXPECT_EQ(most_static(profile, 4, 2), whole);  // without ZeRO
  profile.zero = {.ranks = 1, .step = false};
  EXPECT_EQ(most_static(profile, 2, 1), whole);
  EXPECT_EQ(most_static(profile, 4, 2), 4 * (2'000'000 + 500'001));
  profile.zero.ranks = 2;  // profiled as one of two
  EXPECT_EQ(most_static(profile, 2, 1), whole);
  const DegreeChoice four = choose_degree(profile, options_for(8, 8, 4));
  EXPECT_EQ(four.best().profile->layers.front().optimizer_state, 500'001);
  EXPECT_EQ(four.best().profile->layers.front().step_time, 50);
}

/// The state of a whole layer does not fit, and half of it leaves room for one micro-batch.
TEST(Degrees, WhatIsProvedOfAReplicaCountsItsPartOfTheState) {
  Profile profile = profile_of(std::vector<Nanoseconds>(4, 1000));
  for (LayerCost& layer : profile.layers) {
    layer.parameters = layer.gradients = 0;
    layer.optimizer_state = 240;
    layer.kept = 100;
  }
  profile.zero = {.ranks = 1, .step = false};
  JointOptions options = options_for(8, 260, 2);
  options.partition.device_memory = 220;
  const DegreeChoice choice = choose_degree(profile, options);
  const Candidate& best = choice.best().winner();
  ASSERT_TRUE(best.plan->any_placement);
  EXPECT_EQ(best.plan->any_placement->zero_ranks, 2);
  const PlacementFile file{.placement = *best.placement, .sha256 = ""};
  const Cluster cluster = devices_of_claim(*best.plan, *best.placement);
  Plan plan = *best.plan;
  EXPECT_TRUE(check_any_placement(plan, file, profile, cluster).ok());
  plan.any_placement->zero_ranks = 0;  // that much does not fit
  EXPECT_FALSE(check_any_placement(plan, file, profile, cluster).ok());
}

TEST(Degrees, ZeroDividesWhatTheEndOfAStepTakesWhereTheProfileSaysSo) {
  Profile profile = eight_layers();
  for (LayerCost& layer : profile.layers) layer.step_together = 1'000'000;
  for (const bool divides : {false, true}) {
    profile.zero = {.ranks = 1, .step = divides};
    const DegreeChoice choice = choose_degree(profile, options_for(4, 8, 2));
    const Bytes of_layer = choice.best().profile->layers.front().step_together;
    EXPECT_EQ(of_layer, divides ? 500'000 : 1'000'000);
  }
}

TEST(Degrees, SumsAreARingOverTheReplicasOfEachDevice) {
  Profile profile = eight_layers();
  profile.transfers = {{0, 1, {100, 1'000'000'000}, 0}};
  const DegreeChoice two = choose_degree(profile, options_for(4, 8, 2));
  ASSERT_TRUE(two.best().choice);
  EXPECT_EQ(two.best().pipeline, 2);
  Bytes most = 0;
  std::vector<Bytes> gradients(2, 0);
  for (const Stage& stage : two.best().winner().cuts->stages)
    for (const int d : stage.devices)
      most = std::max(most, gradients[d] += 1'000'000 * static_cast<Bytes>(stage.layers.size()));
  EXPECT_EQ(two.best().all_reduce, 2 * (100 + most / 2));
  for (LayerCost& layer : profile.layers) layer.reduced = layer.gradients / 2;
  EXPECT_EQ(choose_degree(profile, options_for(4, 8, 2)).best().all_reduce, 2 * (100 + most / 4));
}

TEST(Degrees, StagesOfAPipelineAreAsFarApartAsThereAreReplicas) {
  // Two nodes of two devices: with two replicas the stages lie on different nodes, and sums stay within one.
  Profile profile = eight_layers();
  for (LayerCost& layer : profile.layers) layer.input_bytes = layer.output_bytes = 1000;
  Cluster cluster = alike(4, kUnlimited);
  cluster.nodes.emplace_back();
  cluster.devices[2].node = cluster.devices[3].node = 1;
  cluster.within = Link{0, 100'000'000'000};
  cluster.between = Link{5'000, 1'000'000'000};
  JointOptions options = options_for(4, 8, 2);
  options.partition.cluster = cluster;
  const DegreeChoice choice = choose_degree(profile, options);
  const Placement& placement = *choice.best().winner().placement;
  EXPECT_EQ(placement.link.latency, 5'000);
  EXPECT_LE(choice.best().all_reduce, 2 * 8'000'000 / 100);  // 8 MB at most over the fast link
}

// Four devices on one core do the work of all micro-batches one after another, however they are divided.
TEST(Degrees, ReplicasOnSharedCoresAreNoShorter) {
  const Profile whole = eight_layers();
  for (const int replicas : {1, 2, 4, kAnyReplicas}) {
    JointOptions options = options_for(4, 8, replicas);
    options.fewer_devices = FewerDevices::none;
    options.partition.cluster = alike(4, kUnlimited);
    options.partition.cluster->nodes[0].cores = 1;
    const DegreeChoice choice = choose_degree(whole, options);
    EXPECT_EQ(choice.best().step(), 8 * 24'000) << replicas;
    const Placement& placement = *choice.best().winner().placement;
    const Placement read = parse_placement(format_placement(placement), "p.toml").placement;
    EXPECT_EQ(predicted_makespan(*choice.best().winner().plan, read), 8 * 24'000);
  }
  Profile halves = eight_slices(2);
  JointOptions options = sliced(options_for(4, 8, 2));
  options.partition.cluster = alike(4, kUnlimited);
  options.partition.cluster->nodes[0].cores = 3;  // the four ranks of two layers' slices share three
  EXPECT_EQ(choose_degree(halves, options).best().step(), 4 * 8 * 1575 * 4 / 3);
}

TEST(Degrees, ADeviceIsOnTheFullestNodeOfItsRanks) {
  Cluster cluster = alike(2, kUnlimited);
  cluster.nodes.resize(2);
  cluster.nodes[0].cores = 2;
  cluster.nodes[1].cores = 1;
  cluster.devices[0].rank_nodes = {0, 0};
  cluster.devices[1].rank_nodes = {0, 1};
  EXPECT_EQ(cluster.hosts().size(), 1u);
  EXPECT_EQ(cluster.hosts()[0].devices, (std::vector<int>{0, 1}));
  EXPECT_EQ(cluster.hosts()[0].ranks, 2);  // three on two devices
  cluster.nodes[0].cores = 0;              // one for each
  EXPECT_TRUE(cluster.hosts().empty());
}

/// Four devices on nodes of so many.
Cluster on_nodes(const std::vector<int>& sizes) {
  Cluster cluster = alike(4, kUnlimited);
  cluster.nodes.resize(sizes.size());
  for (std::size_t n = 0, d = 0; n < sizes.size(); ++n)
    for (int i = 0; i < sizes[n]; ++i) cluster.devices[d++].node = static_cast<int>(n);
  cluster.within = Link{1, 0};
  cluster.between = Link{2'000, 0};
  return cluster;
}

Link link_of_two_replicas(const Profile& profile, const std::optional<Cluster>& cluster) {
  JointOptions options = options_for(4, 8, 2);
  options.partition.cluster = cluster;
  const Placement placement = *choose_degree(profile, options).best().winner().placement;
  const auto own = placement.links.find({0, 1});
  return own == placement.links.end() ? placement.link : own->second;
}

TEST(Degrees, EveryReplicaWaitsForTheSlowestLink) {
  Profile profile = eight_layers();
  for (const std::vector<int>& sizes : {std::vector{3, 1}, std::vector{1, 3}, std::vector{2, 2}})
    EXPECT_EQ(link_of_two_replicas(profile, on_nodes(sizes)).latency, 2'000);
  EXPECT_EQ(link_of_two_replicas(profile, on_nodes({4})).latency, 1);
  const auto row = [](int from, int to, Nanoseconds latency) { return TransferCost{from, to, {latency, 0}}; };
  profile.transfers = {row(0, 2, 10), row(1, 3, 900), row(0, 1, 10)};  // ranks 0 and 2 are the first replica
  EXPECT_EQ(link_of_two_replicas(profile, std::nullopt).latency, 900);
  profile.transfers = {row(0, 2, 900), row(1, 3, 10), row(0, 1, 10)};
  EXPECT_EQ(link_of_two_replicas(profile, std::nullopt).latency, 900);
  profile.transfers = {row(0, 2, 10), row(0, 3, 900), row(1, 2, 900)};  // the second's is the usual one
  EXPECT_EQ(link_of_two_replicas(profile, std::nullopt).latency, 900);
  profile.transfers = {row(0, 2, 10), row(1, 3, 10), row(0, 1, 900), row(1, 0, 900), row(2, 3, 900)};
  EXPECT_EQ(link_of_two_replicas(profile, std::nullopt).latency, 10);
}

TEST(Degrees, LeaveOutWhatDoesNotFitAndSayWhy) {
  Profile profile = eight_layers();
  JointOptions options = options_for(4, 8);
  options.partition.device_memory = 9'000'000;  // a whole model has 16 MB
  const DegreeChoice choice = choose_degree(profile, options);
  EXPECT_EQ(choice.degrees[0].replicas, 4);
  EXPECT_FALSE(choice.degrees[0].choice);
  EXPECT_NE(choice.degrees[0].why_not, "");
  EXPECT_LT(choice.best().replicas, 4);
  options.partition.device_memory = 1'000'000;
  EXPECT_THROW(choose_degree(profile, options), InfeasibleError);
  // Of a pipeline of one device that is proved, of longer ones not.
  options.partition.device_memory = 4'500'000;
  for (LayerCost& layer : profile.layers) layer.backward_workspace = 10'000'000;
  EXPECT_THROW(choose_degree(profile, options), UndecidedError);
}

std::vector<std::tuple<int, int, int>> divisions(const DegreeChoice& choice) {
  std::vector<std::tuple<int, int, int>> result;
  for (const Degree& degree : choice.degrees)
    result.emplace_back(degree.pipeline, degree.slices, degree.replicas);
  return result;
}

TEST(Degrees, SlicesAreChosenBetweenTheProfiles) {
  const Profile whole = eight_layers(), halves = eight_slices(2);
  JointOptions options = sliced(options_for(4, 8));
  const DegreeChoice free = choose_degree({{&whole, options}, {&halves, options}});
  EXPECT_EQ(divisions(free),
            (std::vector<std::tuple<int, int, int>>{{1, 1, 4}, {2, 1, 2}, {4, 1, 1}, {1, 2, 2}, {2, 2, 1}}));
  EXPECT_EQ(free.best().slices, 1);
  options.partition.device_memory = 9'000'000;  // a whole model has 16 MB, half of each layer 8
  const DegreeChoice tight = choose_degree({{&whole, options}, {&halves, options}});
  EXPECT_EQ(tight.best().slices, 2);
  EXPECT_EQ(tight.best().profile.get(), &halves);
  EXPECT_EQ(tight.best().pipeline, 1);
  EXPECT_EQ(tight.best().step(), 4 * 8 * 1575);
}

TEST(Degrees, SlicesLieOnOneNodeAndStagesAsFarApartAsTheyAreMany) {
  Profile halves = eight_slices(2);
  for (LayerCost& layer : halves.layers) layer.input_bytes = layer.output_bytes = 1000;
  Profile quarters = eight_slices(4);
  Cluster cluster = alike(4, kUnlimited);
  cluster.nodes.emplace_back();
  cluster.devices[2].node = cluster.devices[3].node = 1;
  cluster.within = Link{0, 100'000'000'000};
  cluster.between = Link{5'000, 1'000'000'000};
  JointOptions options = sliced(options_for(4, 8, 1));
  options.partition.cluster = cluster;
  const DegreeChoice choice = choose_degree({{&halves, options}, {&quarters, options}});
  ASSERT_EQ(divisions(choice), (std::vector<std::tuple<int, int, int>>{{2, 2, 1}, {1, 4, 1}}));
  EXPECT_EQ(choice.chosen, 0u);
  EXPECT_EQ(choice.best().winner().placement->link.latency, 5'000);
  EXPECT_THAT(choice.degrees[1].why_not, HasSubstr("several nodes"));
}

TEST(Degrees, SlicesPutAsideCountAsOneDevice) {
  const Profile halves = eight_slices(2);
  const DegreeChoice choice = choose_degree(halves, options_for(4, 8, 1));
  EXPECT_EQ(divisions(choice), (std::vector<std::tuple<int, int, int>>{{4, 1, 1}}));
}

std::string refusal(const std::vector<SlicedProfile>& profiles) {
  try {
    choose_degree(profiles);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Degrees, RefuseProfilesThatDoNotGoTogether) {
  const Profile whole = eight_layers(), halves = eight_slices(2);
  const JointOptions options = sliced(options_for(4, 8));
  const JointOptions four = sliced(options_for(4, 8), 4);
  EXPECT_THAT(refusal({{&whole, four}, {&halves, four}}),
              HasSubstr("no profile was made with 4 slices; those of the profiles: 1, 2"));
  EXPECT_THAT(refusal({{&whole, options}, {&whole, options}}), HasSubstr("two profiles have 1 slice"));
  Profile fewer = halves;
  fewer.layers.pop_back();
  EXPECT_THAT(refusal({{&whole, options}, {&fewer, options}}), HasSubstr("different layers"));
  Profile larger = halves;
  larger.micro_batch_size = 7;
  EXPECT_THAT(refusal({{&whole, options}, {&larger, options}}), HasSubstr("samples"));
  const JointOptions six = sliced(options_for(6, 8, 2), 2);
  EXPECT_THAT(refusal({{&halves, six}}),
              HasSubstr("2 replicas of 2 slices do not divide 6 devices evenly: use 4 or 8 devices"));
}

TEST(Degrees, RefuseNumbersThatDoNotDivide) {
  const auto message = [](const JointOptions& options) {
    const Profile profile = eight_layers();
    return refusal({{&profile, options}});
  };
  EXPECT_THAT(message(options_for(4, 8, 3)),
              HasSubstr("3 replicas do not divide 4 devices evenly: use 3 or 6 devices"));
  JointOptions options = options_for(2, 8, 2);
  Cluster cluster = alike(2, kUnlimited);
  cluster.kinds.emplace_back();
  cluster.devices[1].kind = 1;
  options.partition.cluster = cluster;
  EXPECT_THAT(message(options), HasSubstr("devices of one kind"));
}

}  // namespace
}  // namespace ostinato
