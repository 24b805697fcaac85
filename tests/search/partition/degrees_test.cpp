// SPDX-License-Identifier: Apache-2.0
// Pipelines beside each other: the number of them that makes a step shortest.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "search/files/error.h"
#include "search/partition/degrees.h"
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
  EXPECT_EQ(tight.best().profile, &halves);
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
  EXPECT_THAT(refusal({{&whole, four}, {&halves, four}}), HasSubstr("no profile has 4 slices, but 1, 2"));
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
