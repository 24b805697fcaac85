// SPDX-License-Identifier: Apache-2.0
// Profiles in which the halves of a backward take less than the whole, as noise makes them: splitting then
// gains nothing that is no gain.
#include <gtest/gtest.h>

#include <random>

#include "search/profile/profile_noise.h"
#include "tests/search/checked.h"
#include "tests/search/partition/joint_options.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

Spread exactly(Nanoseconds time) { return {time, time, time, 5}; }

/// Whole and halves have nothing to do with each other; some layers have no halves.
Profile strange_halves(std::mt19937& random) {
  std::uniform_int_distribution<Nanoseconds> time(1, 1000);
  Profile profile = test::random_profile(random, 1 + static_cast<int>(random() % 6));
  for (LayerCost& cost : profile.layers) {
    cost.forward = exactly(time(random));
    cost.backward = exactly(time(random));
    if (random() % 5 == 0) continue;
    cost.backward_input = exactly(time(random));
    cost.backward_weight = exactly(random() % 4 == 0 ? 0 : time(random));
  }
  if (random() % 2 == 0) profile.rank = test::some_block_times(random);
  if (random() % 3 == 0) profile.rank.average = 1'037'000;
  return profile;
}

Nanoseconds work_of(const std::vector<LayerCost>& layers) {
  Nanoseconds work = 0;
  for (const LayerCost& cost : layers) work += test::time_of(cost);
  return work;
}

const Candidate& winner(const JointChoice& choice) { return choice.candidates[choice.winner]; }

TEST(Halves, NoPlanOnOneDeviceIsShorterThanItsWork) {
  std::mt19937 random(33);
  int fewer = 0;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    const Profile profile = strange_halves(random);
    JointOptions options = test::joint_options(1, 1 + static_cast<int>(random() % 4));
    options.restrictions.push_back({Rule::most_chunks, "", 3});
    if (round % 3 == 0) {
      DeviceKind slow;
      slow.speed = 1 + static_cast<std::int64_t>(random() % 2'000'000);
      options.partition.cluster = alike(1, kUnlimited);
      options.partition.cluster->kinds = {slow};
    }
    const DeviceKind kind = options.partition.cluster ? options.partition.cluster->kinds[0] : DeviceKind{};
    const Nanoseconds work = options.partition.micro_batches * work_of(layers_on(kind, profile));
    const JointChoice choice = choose_plan(profile, options);
    for (const Candidate& candidate : choice.candidates) {
      if (!candidate.plan) continue;
      test::expect_holds(*candidate.plan, *candidate.placement);
      EXPECT_GE(candidate.value(), work) << candidate.name;
    }
    options.restrictions.push_back({Rule::whole_backwards, ""});
    EXPECT_EQ(winner(choice).value(), winner(choose_plan(profile, options)).value());
    for (const LayerCost& cost : profile.layers)
      fewer +=
          cost.halves() && cost.backward_input.median + cost.backward_weight.median < cost.backward.median;
  }
  EXPECT_GT(fewer, 30);
}

TEST(Halves, NoPlanOnSeveralDevicesIsShorterThanTheirShareOfTheWork) {
  std::mt19937 random(34);
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    const Profile profile = strange_halves(random);
    const int devices = 2 + static_cast<int>(random() % 3);
    const JointOptions options = test::joint_options(devices, 1 + static_cast<int>(random() % 6));
    const Nanoseconds work = options.partition.micro_batches * work_of(layers_on(DeviceKind{}, profile));
    const JointChoice choice = choose_plan(profile, options);
    test::expect_holds(*winner(choice).plan, *winner(choice).placement);
    EXPECT_GE(winner(choice).value() * devices, work);
  }
}

TEST(Halves, ThatTakeLessThanTheWholeAreScaledToIt) {
  Profile profile = test::profile_of({10, 10, 10});
  profile.layers[0].backward_input = exactly(3);  // of 20
  profile.layers[0].backward_weight = exactly(6);
  profile.layers[1].backward_input = exactly(15);
  profile.layers[1].backward_weight = exactly(15);
  const std::vector<LayerCost> layers = layers_on(DeviceKind{}, profile);
  EXPECT_EQ(layers[0].backward_input.median, 6);
  EXPECT_EQ(layers[0].backward_weight.median, 14);
  EXPECT_EQ(layers[1].backward_input.median, 15);  // that splitting costs more is known
  EXPECT_FALSE(layers[2].halves());
  EXPECT_EQ(noise_of(profile),
            "the backward halves of 1 of 3 measured layers take up to 55 % less than the whole backward, so "
            "the whole counts for both: '0:L'");
  EXPECT_EQ(trust_of(profile), "some of the profile's times are uncertain");
  profile.layers[0].backward_weight = exactly(17);
  EXPECT_EQ(noise_of(profile), "");
  EXPECT_EQ(trust_of(profile), "");
}

}  // namespace
}  // namespace ostinato
