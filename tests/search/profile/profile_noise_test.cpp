// SPDX-License-Identifier: Apache-2.0
#include "search/profile/profile_noise.h"

#include <gtest/gtest.h>

#include <string>

#include "search/profile/profile_json.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato::test {
namespace {

TEST(ProfileNoise, SteadyTimesAreKnown) {
  Profile profile = profile_of({100, 200, 300});
  EXPECT_EQ(noise_of(profile), "");
  profile.layers[1].backward = {400, 350, 550, 9};  // half the median apart
  EXPECT_EQ(noise_of(profile), "");
  EXPECT_EQ(noise_warning(profile), "");
  EXPECT_EQ(format_profile(profile).find("noise"), std::string::npos);
}

TEST(ProfileNoise, HalfTheQuartilesOfAllTimesAreUnknown) {
  Profile profile = profile_of({100, 300});  // and twice as long backward: 1200
  EXPECT_EQ(unknown_share(profile), 0);
  profile.layers[1].backward = {600, 580, 640, 9};
  EXPECT_DOUBLE_EQ(unknown_share(profile), 30.0 / 1200);
  EXPECT_EQ(unknown_share(Profile{}), 0);
  EXPECT_EQ(trust_of(profile), "");
  profile.layers[1].backward = {600, 480, 700, 9};
  EXPECT_EQ(trust_of(profile), "half of the profile's samples are off by up to 9.2 %");
}

TEST(ProfileNoise, NamesTheWorstFirst) {
  Profile profile = profile_of({100, 200, 300});
  profile.timer = "cpu";
  profile.micro_batch_size = 1;
  profile.model_sha256 = std::string(64, 'a');
  profile.layers[0].forward = {100, 90, 150, 9};
  profile.layers[2].backward = {600, 600, 1800, 9};
  EXPECT_EQ(noise_of(profile),
            "the times of 2 of 3 measured layers are uncertain: their quartiles differ by up to 200 % of the "
            "median: '2:L', '0:L'");
  EXPECT_EQ(noise_warning(profile), noise_of(profile) + "; profile again on an idle machine");
  const std::string text = format_profile(profile);
  EXPECT_NE(text.find("\"noise\": \"the times of 2"), std::string::npos);
  EXPECT_EQ(format_profile(parse_profile(text, "p.json")), text);
}

TEST(ProfileNoise, WhatIsSmallDoesNotMatterUnlessThereIsMuchOfIt) {
  Profile profile = profile_of({10'000, 10});
  profile.layers[1].forward = {10, 10, 60, 9};
  EXPECT_EQ(noise_of(profile), "");
  for (int i = 2; i < 20; ++i) {  // all measured as the second
    profile.layers.push_back(profile.layers[1]);
    profile.layers.back().index = i;
    profile.layers.back().same_as = 1;
  }
  EXPECT_NE(noise_of(profile).find("1 of 2 measured layers"), std::string::npos) << noise_of(profile);
}

}  // namespace
}  // namespace ostinato::test
