// SPDX-License-Identifier: Apache-2.0
// The joint choice of placement and schedule.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "search/files/error.h"
#include "search/named/references.h"
#include "search/partition/even_split.h"
#include "search/partition/joint.h"
#include "tests/search/checked.h"
#include "tests/search/partition/joint_options.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

using test::profile_of;
using test::random_profile;

JointOptions options_for(int devices, int micro_batches) {
  JointOptions options = test::joint_options(devices, micro_batches);
  options.restrictions.push_back({Rule::most_chunks, "", 2});
  return options;
}

const Candidate& winner(const JointChoice& choice) { return choice.candidates[choice.winner]; }

TEST(Joint, NoCandidateIsBetterThanTheWinner) {
  std::mt19937 random(51);
  for (int round = 0; round < 8; ++round) {
    Profile profile = random_profile(random, 7);
    profile.layers[0].shardable = true;
    JointOptions options = options_for(3, 4);
    options.shardable = shardable_layers(profile);
    if (round % 2) options.partition.device_memory = 300;
    const JointChoice choice = choose_plan(profile, options);
    const Candidate& best = winner(choice);
    test::expect_holds(*best.plan, *best.placement);
    for (const Candidate& candidate : choice.candidates) {
      SCOPED_TRACE(candidate.name);
      if (candidate.plan) {
        EXPECT_LE(best.value(), candidate.value());
        test::expect_holds(*candidate.plan, *candidate.placement);
      } else {
        EXPECT_NE(candidate.why_not, "");
        // Dropped by its bound: nothing shorter was given up.
        if (candidate.bound > 0 && !candidate.infeasible) {
          EXPECT_GE(candidate.bound, best.value());
        }
      }
    }
    for (const Reference& r : references(even_split(profile, options.partition), 4, Objective::makespan)) {
      if (r.fits) {
        EXPECT_LE(best.value(), r.value) << r.name;
      }
    }
  }
}

TEST(Joint, ShardsALayerThatIsTooLongForOneDevice) {
  Profile profile = profile_of({40, 5, 5, 5, 5, 5, 5, 5, 5});
  JointOptions options = options_for(4, 8);
  EXPECT_GE(winner(choose_plan(profile, options)).value(), 8 * 120);
  options.shardable = {0};
  const JointChoice choice = choose_plan(profile, options);
  EXPECT_EQ(winner(choice).options.sharded, std::vector<int>{0});
  EXPECT_LT(winner(choice).value(), 8 * 120);
}

TEST(Joint, RecomputesWhereMemoryIsShort) {
  Profile profile = profile_of({2, 2, 2, 2});
  for (LayerCost& cost : profile.layers) {
    cost.kept = 100;
    cost.input_bytes = 1;
  }
  JointOptions options = options_for(4, 8);
  options.restrictions.push_back({Rule::most_chunks, "", 1});
  options.partition.device_memory = 110;
  const JointChoice choice = choose_plan(profile, options);
  EXPECT_EQ(winner(choice).options.recompute, Recompute::needed);
  options.recompute = false;
  EXPECT_GT(winner(choose_plan(profile, options)).value(), winner(choice).value());
}

TEST(Joint, TakesBranchesBesideEachOther) {
  const Profile profile = test::two_branches(4, 2, 5);
  JointOptions options = options_for(5, 3);
  const JointChoice choice = choose_plan(profile, options);
  const bool listed = std::any_of(choice.candidates.begin(), choice.candidates.end(),
                                  [](const Candidate& c) { return c.graph; });
  EXPECT_TRUE(listed);
  test::expect_holds(*winner(choice).plan, *winner(choice).placement);
}

TEST(Joint, AnotherDeviceNeverHurts) {
  std::mt19937 random(53);
  for (int round = 0; round < 6; ++round) {
    Profile profile = random_profile(random, 5);
    profile.transfers = {{0, 1, {static_cast<Nanoseconds>(random() % 40), 0}, 0}};
    Nanoseconds before = std::numeric_limits<Nanoseconds>::max();
    for (int devices = 1; devices <= 6; ++devices) {  // more than layers, too
      JointOptions options = options_for(devices, 2);
      options.restrictions.push_back({Rule::most_chunks, "", 1});
      const Nanoseconds value = winner(choose_plan(profile, options)).value();
      EXPECT_LE(value, before) << round << " " << devices;
      before = value;
    }
  }
}

TEST(Joint, MoreBandwidthNeverHurts) {
  std::mt19937 random(54);
  for (int round = 0; round < 10; ++round) {
    Profile profile = random_profile(random, 6);
    profile.layers[0].shardable = true;
    JointOptions options = options_for(3, 4);
    options.shardable = shardable_layers(profile);
    if (round % 2) options.partition.device_memory = 400;
    Nanoseconds slowest = 0, before = std::numeric_limits<Nanoseconds>::max();
    for (const std::int64_t megabytes : {250, 1000, 4000, 16'000, 0}) {  // a second; 0: they cost nothing
      profile.transfers = {{0, 1, {1, megabytes * 1'000'000}, 0}};
      const Nanoseconds best = winner(choose_plan(profile, options)).value();
      EXPECT_LE(best, before) << "round " << round << ", " << megabytes;
      before = best;
      slowest = std::max(slowest, best);
    }
    EXPECT_LT(before, slowest);
  }
}

TEST(Joint, TheEvenSplitIsACandidate) {
  // Of equal layers it is what the exact partition finds as well.
  const JointChoice choice = choose_plan(profile_of({2, 2, 2, 2}), options_for(4, 4));
  const auto even = std::find_if(choice.candidates.begin(), choice.candidates.end(),
                                 [](const Candidate& candidate) { return candidate.even; });
  ASSERT_NE(even, choice.candidates.end());
  EXPECT_EQ(even->why_not, "the same stages as 1 chunk per device");
}

TEST(Joint, ANamedScheduleThatOnlyAWorsePlacementAdmits) {
  JointOptions options = options_for(4, 8);
  options.search.method = "interleaved-1f1b";
  const JointChoice choice = choose_plan(profile_of({40, 1, 40, 1, 40, 1, 40, 1}), options);
  EXPECT_EQ(winner(choice).plan->search.method, "interleaved-1f1b");
  EXPECT_EQ(winner(choice).cuts->stages.size(), 8u);
}

TEST(Joint, GivesTheSamePlanAtAnyNumberOfThreads) {
  std::mt19937 random(57);
  const Profile profile = random_profile(random, 10);
  const JointOptions options = options_for(3, 5);
  JointOptions threads = options;
  threads.search.threads = 3;
  const JointChoice a = choose_plan(profile, options), b = choose_plan(profile, threads);
  EXPECT_EQ(winner(a).name, winner(b).name);
  EXPECT_EQ(winner(a).plan->schedule, winner(b).plan->schedule);
}

TEST(Joint, PutsAnyLayersOnADeviceWhereNoRunsFit) {
  for (const std::vector<Bytes>& weights :
       {std::vector<Bytes>{50, 100, 50}, std::vector<Bytes>{40, 100, 60}}) {
    Profile profile = profile_of(std::vector<Nanoseconds>(weights.size(), 1));
    for (LayerCost& cost : profile.layers) cost.parameters = weights[cost.index];
    JointOptions options = options_for(2, 4);
    options.partition.device_memory = 100;
    const JointChoice choice = choose_plan(profile, options);
    EXPECT_EQ(winner(choice).cuts->stages.size(), 3U);
    EXPECT_TRUE(check_plan(*winner(choice).plan, *winner(choice).placement).ok());
  }
}

TEST(Joint, InfeasibleIsAProofForEveryPlacement) {
  Profile profile = profile_of({1, 1, 1});
  JointOptions options = options_for(2, 4);
  options.partition.device_memory = 100;
  for (LayerCost& cost : profile.layers) cost.parameters = 60;  // three do not fit in two pairs
  EXPECT_THROW(choose_plan(profile, options), InfeasibleError);
  for (LayerCost& cost : profile.layers) {
    cost.parameters = 10;
    cost.backward_workspace = 200;  // which no bound of all placements counts
  }
  EXPECT_THROW(choose_plan(profile, options), UndecidedError);
}

// More than kUsualChunks are not tried where fewer do not fit, and stages for a short latency prove nothing.
TEST(Joint, ACandidateThatWasNotTriedIsNoWrongInput) {
  Profile profile = profile_of(std::vector<Nanoseconds>(12, 1));
  JointOptions options = test::joint_options(2, 2);
  options.partition.device_memory = 100;
  for (const Objective objective : {Objective::makespan, Objective::latency}) {
    options.search.objective = objective;
    for (LayerCost& cost : profile.layers) cost.parameters = 101, cost.backward_workspace = 0;
    EXPECT_THROW(choose_plan(profile, options), InfeasibleError);
    for (LayerCost& cost : profile.layers) cost.parameters = 1, cost.backward_workspace = 200;
    EXPECT_THROW(choose_plan(profile, options), UndecidedError);
  }
}

TEST(Joint, WhatEveryCandidateWasRefusedForIsWrongInput) {
  JointOptions options = options_for(2, 2);
  options.search.method = "dualpipe";
  EXPECT_THROW(choose_plan(profile_of({1, 1, 1}), options), InputError);
}

TEST(Joint, InfeasibleWhereALayerIsTooLarge) {
  Profile profile = profile_of({1, 1, 1, 1});
  for (LayerCost& cost : profile.layers) cost.parameters = 1000;
  JointOptions options = options_for(2, 2);
  options.partition.device_memory = 900;
  EXPECT_THROW(choose_plan(profile, options), InfeasibleError);
}

TEST(Joint, FindsLayersByNameAndIndex) {
  const Profile profile = profile_of({1, 1, 1});
  EXPECT_EQ(find_layers(profile, "2,0:L,2"), (std::vector<int>{0, 2}));
  EXPECT_TRUE(find_layers(profile, "").empty());
  for (const char* wrong : {"3", "-1", "0:M", "1,,2"}) {
    EXPECT_THROW(find_layers(profile, wrong), InputError) << wrong;
  }
  try {
    find_layers(profile, "00:L");
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("did you mean '0:L'?"));
  }
}

}  // namespace
}  // namespace ostinato
