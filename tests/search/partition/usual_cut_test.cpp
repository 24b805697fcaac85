// SPDX-License-Identifier: Apache-2.0
#include "search/partition/usual_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "search/files/error.h"
#include "search/named/references.h"
#include "search/partition/chain.h"
#include "search/partition/even_split.h"
#include "search/partition/joint.h"
#include "search/partition/stages.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

using Sizes = std::vector<int>;
using Value = std::pair<bool, Nanoseconds>;  // does not fit, makespan

Sizes sizes_of(const StageCuts& cuts) {
  Sizes sizes;
  for (const Stage& stage : cuts.stages) sizes.push_back(static_cast<int>(stage.layers.size()));
  return sizes;
}

Value by_1f1b(const Profile& profile, const PartitionOptions& options, const Sizes& sizes) {
  const Placement placement = place_stages(profile, options, cut_as(profile, options, sizes).stages);
  const Reference usual =
      references(placement, options.micro_batches, Objective::makespan, [](const std::string& name) {
        return name == "1f1b";
      }).at(0);
  return {!usual.fits, usual.value};
}

StageCuts cut(const Profile& profile, const PartitionOptions& options, const std::vector<Sizes>& starts) {
  return cut_for_usual(profile, options, {}, Objective::makespan, starts, {});
}

TEST(UsualCut, IsOftenShorterThanStagesThatSuitTheBusiestDevice) {
  std::mt19937 random(3);
  int shorter = 0;
  for (int i = 0; i < 40; ++i) {
    const Profile profile = test::random_profile(random, 10);
    const PartitionOptions options{.devices = 4, .micro_batches = 4};
    const Sizes balanced = sizes_of(cut_chain(profile, options));
    const Value value = by_1f1b(profile, options, sizes_of(cut(profile, options, {balanced})));
    EXPECT_LE(value, by_1f1b(profile, options, balanced));
    shorter += value < by_1f1b(profile, options, balanced);
  }
  EXPECT_GE(shorter, 5);
}

TEST(UsualCut, IsNoLongerThanAnyWithOneLayerMoved) {
  std::mt19937 random(7);
  int best = 0;
  for (int i = 0; i < 60; ++i) {
    const Profile profile = test::random_profile(random, 8);
    const PartitionOptions options{
        .devices = 3, .device_memory = i % 2 == 0 ? kUnlimited : 250, .micro_batches = 5};
    const std::vector<Sizes> starts = {{3, 3, 2}, {1, 1, 6}};
    const Sizes found = sizes_of(cut(profile, options, starts));
    const Value value = by_1f1b(profile, options, found);
    Value least = value;
    for (int a = 1; a < 7; ++a)
      for (int b = 1; a + b < 8; ++b) least = std::min(least, by_1f1b(profile, options, {a, b, 8 - a - b}));
    best += least == value;
    for (const Sizes& start : starts) EXPECT_LE(value, by_1f1b(profile, options, start));
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) {
        if (from == to || found[from] == 1) continue;
        Sizes next = found;
        --next[from], ++next[to];
        EXPECT_LE(value, by_1f1b(profile, options, next));
      }
    }
  }
  EXPECT_GE(best, 50);
}

TEST(UsualCut, NeedsAStart) {
  const Profile profile = test::profile_of({1, 2});
  EXPECT_THROW(cut(profile, {.devices = 2, .micro_batches = 2}, {}), InfeasibleError);
}

TEST(UsualCut, IsACandidateThatNoPlanIsBehind) {
  Profile profile = test::profile_of({1, 10, 10, 10, 10, 10, 12});
  profile.run.layers = {2, 3, 2};
  JointOptions options{.partition = {.devices = 3, .micro_batches = 4}, .moves = false};
  options.search.micro_batches = 4;
  options.restrictions = {{.rule = Rule::most_chunks, .reason = "tested", .chunks = 1}};
  const JointChoice choice = choose_plan(profile, options);
  const auto usual = std::ranges::find(choice.candidates, true, &Candidate::usual);
  ASSERT_NE(usual, choice.candidates.end());
  ASSERT_TRUE(usual->cuts);
  EXPECT_LE(choice.candidates[choice.winner].value(),
            by_1f1b(profile, options.partition, sizes_of(*usual->cuts)).second);
  EXPECT_LE(by_1f1b(profile, options.partition, sizes_of(*usual->cuts)),
            by_1f1b(profile, options.partition, profile.run.layers));
}

}  // namespace
}  // namespace ostinato
