// SPDX-License-Identifier: Apache-2.0
// Where split backwards or shards win by less than the profile's times can tell, losses stay equal to 1F1B's.
#include <gtest/gtest.h>

#include <random>

#include "search/profile/profile_noise.h"
#include "tests/search/checked.h"
#include "tests/search/partition/joint_options.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

const Candidate& winner(const JointChoice& choice) { return choice.candidates[choice.winner]; }

/// Quartiles so many thousandths of the median to either side.
Spread spread(Nanoseconds median, long thousandths) {
  const Nanoseconds off = median * thousandths / 1000;
  return {median, median - off, median + off, 9};
}

Profile measured(std::mt19937& random, long thousandths) {
  std::uniform_int_distribution<Nanoseconds> time(50'000, 100'000);
  Profile profile = test::profile_of(std::vector<Nanoseconds>(6, 0));
  for (LayerCost& cost : profile.layers) {
    const Nanoseconds forward = time(random), input = time(random), weight = time(random);
    cost.forward = spread(forward, thousandths);
    cost.backward = spread(input + weight, thousandths);
    cost.backward_input = spread(input, thousandths);
    cost.backward_weight = spread(weight, thousandths);
  }
  return profile;
}

JointOptions options_for(const Profile& profile) {
  JointOptions options = test::joint_options(2, 6);
  options.restrictions.push_back({Rule::most_chunks, "", 2});
  options.shardable = {static_cast<int>(profile.layers.size()) - 1};
  return options;
}

JointOptions without_loss_changes(JointOptions options) {
  options.restrictions.push_back({Rule::whole_backwards, ""});
  options.shardable.clear();
  return options;
}

std::size_t blocks(const Candidate& candidate) { return candidate.placement->blocks.size(); }

double over(const Candidate& one, const Candidate& other) {
  return static_cast<double>(one.value()) / static_cast<double>(other.value()) - 1;
}

TEST(JointLosses, ExactTimesLeaveTheShortest) {
  std::mt19937 random(7);
  for (int round = 0; round < 10; ++round) {
    const Profile profile = measured(random, 0);
    EXPECT_EQ(unknown_share(profile), 0);
    EXPECT_FALSE(choose_plan(profile, options_for(profile)).shortest) << round;
  }
}

TEST(JointLosses, AreKeptWhereThatCostsLessThanTheTimesAreKnown) {
  int kept = 0, changed = 0;
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 exact(seed), spread(seed);
    const Profile without = measured(exact, 0), profile = measured(spread, seed % 2 == 0 ? 30 : 4);
    const double unknown = std::min(0.01, unknown_share(profile));
    EXPECT_NEAR(unknown, seed % 2 == 0 ? 0.01 : 0.004, 1e-4);
    const JointOptions options = options_for(profile);
    const JointChoice shortest = choose_plan(without, options), choice = choose_plan(profile, options);
    const JointChoice equal = choose_plan(without, without_loss_changes(options));
    test::expect_holds(*winner(choice).plan, *winner(choice).placement);
    EXPECT_LE(over(winner(choice), winner(shortest)), unknown) << seed;
    if (choice.shortest) {
      const Candidate& other = choice.candidates[*choice.shortest];
      const bool losses = winner(choice).keeps_losses() && !other.keeps_losses();
      kept += losses;
      EXPECT_TRUE(losses || blocks(winner(choice)) < blocks(other)) << seed;
      EXPECT_EQ(choice.candidates[*choice.shortest].value(), winner(shortest).value()) << seed;
    } else {
      EXPECT_EQ(winner(choice).value(), winner(shortest).value()) << seed;
    }
    if (winner(choice).keeps_losses()) continue;
    ++changed;
    EXPECT_GT(over(winner(equal), winner(shortest)), unknown) << seed;
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(changed, 0);
}

/// What a replay does not know comes first there, and does not add to what the times do not.
TEST(JointLosses, AreKeptOnSharedCoresWhereThatCostsLessThanTheTimesAreKnown) {
  int kept = 0;
  for (unsigned seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Profile profile = measured(random, 30);
    JointOptions options = options_for(profile);
    options.partition.cluster = alike(3, kUnlimited);
    options.partition.cluster->nodes[0].cores = 2;
    const JointChoice choice = choose_plan(profile, options);
    if (!choice.shortest) continue;
    ++kept;
    Nanoseconds least = winner(choice).step;
    for (const Candidate& c : choice.candidates)
      if (c.plan) least = std::min(least, c.step);
    EXPECT_EQ(choice.candidates[*choice.shortest].step, least);
    EXPECT_LE(static_cast<double>(winner(choice).step) / static_cast<double>(least) - 1,
              std::min(0.01, unknown_share(profile)));
  }
  EXPECT_GT(kept, 0);
}

TEST(JointLosses, MayChangeWhereTheUserAskedForSplitBackwards) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const Profile profile = measured(random, 30);
    JointOptions options = options_for(profile);
    options.partition.split_backward = true;
    const JointChoice choice = choose_plan(profile, options);
    if (!choice.shortest) continue;
    EXPECT_LT(blocks(winner(choice)), blocks(choice.candidates[*choice.shortest])) << seed;
  }
}

/// Layers alike but for a little: more chunks a device gain less than the times are known to.
TEST(JointLosses, FewerBlocksAreTakenWhereMoreGainLessThanTheTimesAreKnown) {
  int fewer = 0;
  for (unsigned seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 exact(seed), spread(seed);
    const Profile without = measured(exact, 0), profile = measured(spread, 30);
    JointOptions options = without_loss_changes(options_for(profile));
    options.partition.micro_batches = options.search.micro_batches = 24;
    options.moves = false;
    const JointChoice shortest = choose_plan(without, options), choice = choose_plan(profile, options);
    test::expect_holds(*winner(choice).plan, *winner(choice).placement);
    EXPECT_LE(over(winner(choice), winner(shortest)), 0.01);
    EXPECT_LE(blocks(winner(choice)), blocks(winner(shortest)));
    EXPECT_FALSE(shortest.shortest);
    for (const Candidate& c : choice.candidates) {
      if (!is_usual(c, options.partition) || !c.plan) continue;
      EXPECT_LE(winner(choice).value(), c.value());
    }
    if (!choice.shortest) continue;
    ++fewer;
    EXPECT_LT(blocks(winner(choice)), blocks(choice.candidates[*choice.shortest]));
    EXPECT_EQ(winner(choice).idle, choice.candidates[*choice.shortest].idle);
  }
  EXPECT_GT(fewer, 0);
}

}  // namespace
}  // namespace ostinato
