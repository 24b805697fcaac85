// SPDX-License-Identifier: Apache-2.0
// The bound over all placements: never above the best of every placement, and tight where it should be.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "search/checker/any_placement.h"
#include "search/files/error.h"
#include "search/partition/any_placement.h"
#include "search/partition/packing.h"
#include "search/partition/stages.h"
#include "search/search.h"
#include "tests/search/partition/joint_options.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

using partition::Fits;
using partition::Packing;
using test::joint_options;
using test::profile_of;
using test::random_profile;
using test::some_block_times;

/// Every way to put these items into bins of these sizes, one item after the other.
bool fits_by_trial(const std::vector<std::int64_t>& items, std::vector<std::int64_t>& rooms, std::size_t i) {
  if (i == items.size()) return true;
  for (std::int64_t& room : rooms) {
    if (room < items[i]) continue;
    room -= items[i];
    const bool fits = fits_by_trial(items, rooms, i + 1);
    room += items[i];
    if (fits) return true;
  }
  return false;
}

TEST(Packing, SaysWhatEveryTrialSays) {
  std::mt19937 random(1);
  int yes = 0, no = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::int64_t> items(1 + random() % 8), rooms(1 + random() % 4);
    for (auto& item : items) item = static_cast<std::int64_t>(random() % 6);
    for (auto& room : rooms) room = static_cast<std::int64_t>(random() % 12);
    std::sort(rooms.rbegin(), rooms.rend());
    long work = 100'000;
    const Fits fits = Packing(items).fits(rooms, work);
    ASSERT_NE(fits, Fits::unknown);
    EXPECT_EQ(fits == Fits::yes, fits_by_trial(items, rooms, 0)) << "round " << round;
    ++(fits == Fits::yes ? yes : no);
  }
  EXPECT_GT(std::min(yes, no), 500);
}

TEST(Packing, SaysSoWhereItsWorkIsSpent) {
  std::vector<std::int64_t> items;
  for (int i = 0; i < 60; ++i) items.push_back(1000 + 7 * i);
  std::vector<std::int64_t> rooms(12, 6033);
  long work = 1000;
  EXPECT_EQ(Packing(items).fits(rooms, work), Fits::unknown);
  EXPECT_EQ(work, 0);
}

TEST(AnyPlacement, CountsThatLayersCannotBeCut) {
  // 41 layers of 3 on 4 devices: one has 11 of them, and the sum alone would say 10.25.
  const Profile profile = profile_of(std::vector<Nanoseconds>(41, 1));
  const AnyPlacement any = bound_any_placement(profile, joint_options(4, 100), 1'000'000);
  EXPECT_GE(any.lower_bound, 11 * 3 * 100);
  EXPECT_LE(any.lower_bound, 11 * 3 * 100 + 3 * 3);
  EXPECT_EQ(any.devices, 4);
}

TEST(AnyPlacement, CountsThatMemoryIsShort) {
  // Four layers on four devices with room for one micro-batch each. By D2, 1300 * 15 / (4 + 4 / 9) = 4388.
  // What a forward makes again takes room as well: where the bytes of a layer cost 1 for 3 units of time, the
  // last one keeps them for 3 + 1, the others run again for 4 + 1, and the devices are idle for 0 + 3 + 6 +
  // 9: (1300 * 19 + 18) / (4 + 4 / 3).
  Profile profile = profile_of(std::vector<Nanoseconds>(4, 1));
  for (LayerCost& layer : profile.layers) {
    layer.kept = 100;
    layer.parameters = layer.gradients = layer.optimizer_state = 0;
  }
  JointOptions options = joint_options(4, 1300);
  const Nanoseconds unlimited = bound_any_placement(profile, options, 1'000'000).lower_bound;
  options.partition.device_memory = 100;
  const AnyPlacement any = bound_any_placement(profile, options, 1'000'000);
  EXPECT_LT(unlimited, 3 * 1300 + 20);
  EXPECT_EQ(any.lower_bound, 4635);
}

TEST(AnyPlacement, CountsTiedLayersOnce) {
  Profile once = profile_of(std::vector<Nanoseconds>(4, 1));
  for (LayerCost& layer : once.layers) {
    layer.kept = 100;
    layer.parameters = layer.gradients = layer.optimizer_state = 0;
  }
  once.layers.front().parameters = 300;
  Profile twice = once;
  twice.layers.back().parameters = twice.layers.back().tied = 300;
  JointOptions options = joint_options(4, 130);
  options.partition.device_memory = 300;
  const auto bound = [&](const Profile& p) { return bound_any_placement(p, options, 1'000'000).lower_bound; };
  EXPECT_EQ(bound(twice), bound(once));
  options.partition.devices = 1;
  options.partition.device_memory = 550;
  EXPECT_NO_THROW(choose_plan(once, options));
  EXPECT_THROW(choose_plan(twice, options), UndecidedError);
  twice.layers.back().tied = 0;
  EXPECT_THROW(choose_plan(twice, options), InfeasibleError);
}

/// The shortest schedule of any division of the layers into stages on any devices, by the search.
class Shortest {
 public:
  Shortest(const Profile& profile, const JointOptions& options) : profile_(profile), options_(options) {}

  Nanoseconds find() {
    std::vector<Stage> stages;
    add_layer(stages, 0);
    return best_;
  }

 private:
  void add_layer(std::vector<Stage>& stages, int layer) {
    if (layer == static_cast<int>(profile_.layers.size())) return search_one(stages);
    for (const std::vector<int>& devices : places_of(layer)) {
      if (!stages.empty() && stages.back().devices == devices) {
        stages.back().layers.push_back(layer);
        add_layer(stages, layer + 1);
        stages.back().layers.split(stages.back().layers.size() - 1);
      } else {
        stages.push_back({.layers = {layer}, .devices = devices});
        add_layer(stages, layer + 1);
        stages.pop_back();
      }
    }
  }

  std::vector<std::vector<int>> places_of(int layer) const {
    std::vector<std::vector<int>> places;
    std::vector<int> all;
    for (int device = 0; device < options_.partition.devices; ++device) {
      places.push_back({device});
      all.push_back(device);
    }
    if (std::ranges::count(options_.shardable, layer) > 0) places.push_back(all);
    return places;
  }

  void search_one(const std::vector<Stage>& stages) {
    const Placement placement = place_stages(profile_, options_.partition, stages);
    try {
      best_ = std::min(best_, search(placement, options_.search).makespan);
    } catch (const std::runtime_error&) {
      // No order of it fits the memory.
    }
  }

  const Profile& profile_;
  const JointOptions& options_;
  Nanoseconds best_ = std::numeric_limits<Nanoseconds>::max();
};

TEST(AnyPlacement, IsBelowEveryPlacementAndOftenTheBestOfThem) {
  std::mt19937 random(5), blocks(7);
  int tight = 0;
  for (int round = 0; round < 40; ++round) {
    Profile profile = random_profile(random, 4);
    if (round % 2) profile.rank = some_block_times(blocks);
    JointOptions options = joint_options(2, 1 + static_cast<int>(random() % 5));
    options.partition.inference = round % 4 == 3;
    if (round % 5 == 2) options.shardable = {0, 1, 3};
    if (round % 4 == 1) options.partition.device_memory = 60 + static_cast<Bytes>(random() % 60);
    const Nanoseconds best = Shortest(profile, options).find();
    const AnyPlacement any = bound_any_placement(profile, options, std::numeric_limits<Nanoseconds>::max());
    EXPECT_LE(any.lower_bound, best) << "round " << round;
    EXPECT_GE(2 * any.lower_bound, best) << "round " << round;
    tight += any.lower_bound == best;
  }
  EXPECT_GE(tight, 4);
}

TEST(AnyPlacement, RoundsTheShardedLayersOfAStageUpTogether) {
  const Profile profile = profile_of(std::vector<Nanoseconds>(4, 1));
  JointOptions options = joint_options(2, 1);
  options.shardable = {0, 1, 2, 3};
  EXPECT_EQ(Shortest(profile, options).find(), 2 + 4);
  EXPECT_LE(bound_any_placement(profile, options, 1000).lower_bound, 6);
}

/// The shortest schedule of any division into stages on any devices, of which each may recompute.
class ShortestRecomputing {
 public:
  ShortestRecomputing(const Profile& profile, const JointOptions& options)
      : profile_(profile), options_(options) {}

  /// The largest value of a time where there is none.
  Nanoseconds find() {
    begin_stage(0);
    return best_;
  }

 private:
  void begin_stage(int layer) {
    if (layer == static_cast<int>(profile_.layers.size())) return search_one();
    for (int device = 0; device < options_.partition.devices; ++device) {
      for (const bool recompute : {false, true}) {
        stages_.push_back({.layers = {layer}, .devices = {device}, .recompute = recompute});
        end_stage(layer + 1);
        stages_.pop_back();
      }
    }
  }

  void end_stage(int layer) {
    begin_stage(layer);
    if (layer == static_cast<int>(profile_.layers.size())) return;
    Layers& layers = stages_.back().layers;
    layers.push_back(layer);
    end_stage(layer + 1);
    stages_.back().layers.split(stages_.back().layers.size() - 1);
  }

  void search_one() {
    try {
      best_ = std::min(best_,
                       search(place_stages(profile_, options_.partition, stages_), options_.search).makespan);
    } catch (const std::runtime_error&) {
      // No order of it fits the memory.
    }
  }

  const Profile& profile_;
  const JointOptions& options_;
  std::vector<Stage> stages_;
  Nanoseconds best_ = std::numeric_limits<Nanoseconds>::max();
};

TEST(AnyPlacement, IsBelowEveryPlacementThatRecomputesWhereMemoryIsShort) {
  std::mt19937 random(11);
  int binding = 0, close = 0;
  for (int round = 0; round < 12; ++round) {
    Profile profile = random_profile(random, 3);
    if (round % 3 == 0) profile.rank = some_block_times(random);
    Bytes fixed = 0, kept = 0;
    for (LayerCost& cost : profile.layers) {
      cost.kept = 20 + static_cast<Bytes>(random() % 40);
      cost.input_bytes = static_cast<Bytes>(random() % 20);
      cost.parameters = cost.gradients = cost.optimizer_state = 0;
      if (round % 2) cost.backward_input = cost.backward_weight = {2, 2, 2, 3};
      fixed = std::max(fixed, cost.kept + cost.input_bytes + 10);
      kept += cost.kept + cost.input_bytes;
    }
    JointOptions options = joint_options(2, 4 + static_cast<int>(random() % 5));
    options.partition.split_backward = round % 4 == 1;
    const Nanoseconds free =
        bound_any_placement(profile, options, std::numeric_limits<Nanoseconds>::max()).lower_bound;
    options.partition.device_memory = std::max(fixed, kept / 3);
    const Nanoseconds best = ShortestRecomputing(profile, options).find();
    if (best == std::numeric_limits<Nanoseconds>::max()) continue;
    const AnyPlacement any = bound_any_placement(profile, options, std::numeric_limits<Nanoseconds>::max());
    EXPECT_LE(any.lower_bound, best) << "round " << round;
    binding += any.lower_bound > free;
    close += 2 * any.lower_bound >= best;
  }
  EXPECT_GE(binding, 1);
  EXPECT_GE(close, 3);
}

/// A plan that claims this bound, and the placement that it is of.
struct Claimed {
  Plan plan;
  PlacementFile file;
};

Claimed claimed(const Profile& profile, const JointOptions& options) {
  const JointChoice choice = choose_plan(profile, options);
  const Candidate& best = choice.candidates[choice.winner];
  return {*best.plan, {.placement = *best.placement, .sha256 = ""}};
}

TEST(AnyPlacement, IsProvedAgainByTheChecker) {
  std::mt19937 random(6), blocks(8);
  for (int round = 0; round < 20; ++round) {
    Profile profile = random_profile(random, 6);
    profile.layers[0].shardable = round % 3 == 0;
    if (round % 3 == 1) profile.rank = some_block_times(blocks);
    JointOptions options =
        joint_options(1 + static_cast<int>(random() % 4), 1 + static_cast<int>(random() % 6));
    options.shardable = shardable_layers(profile);
    options.partition.inference = round % 5 == 4;
    if (round % 2) options.search.objective = Objective::span;
    if (round % 4 == 2) options.partition.device_memory = 250;
    Cluster cluster = alike(options.partition.devices, options.partition.device_memory);
    if (round % 4 == 1) {
      DeviceKind slow;
      slow.speed = kUsualSpeed / 3;
      cluster.kinds.push_back(slow);
      cluster.devices.back().kind = 1;
      options.partition.cluster = cluster;
    }
    auto [plan, file] = claimed(profile, options);
    SCOPED_TRACE(round);
    ASSERT_TRUE(plan.any_placement);
    EXPECT_GT(plan.any_placement->lower_bound, 0);
    EXPECT_EQ(check_any_placement(plan, file, profile, cluster).failures, std::vector<std::string>{});
    ++plan.any_placement->lower_bound;
    EXPECT_FALSE(check_any_placement(plan, file, profile, cluster).ok());
  }
}

TEST(AnyPlacement, IsProvedByStagesWhereInputsTakeTheMemory) {
  std::mt19937 random(12);
  int by_stages = 0;
  for (int round = 0; round < 2; ++round) {
    Profile profile = random_profile(random, 6);
    if (round % 2) profile.rank = some_block_times(random);
    for (LayerCost& cost : profile.layers) {
      cost.kept = 30;
      cost.input_bytes = 10;
      cost.parameters = cost.gradients = cost.optimizer_state = 0;
    }
    JointOptions options = joint_options(3, 12);
    options.partition.device_memory = 95 + static_cast<Bytes>(random() % 30);
    auto [plan, file] = claimed(profile, options);
    const Cluster cluster = alike(3, options.partition.device_memory);
    const CheckResult result = check_any_placement(plan, file, profile, cluster);
    EXPECT_EQ(result.failures, std::vector<std::string>{}) << "round " << round;
    by_stages += result.ok() && result.passed.front().find("(D4)") != std::string::npos;
    ++plan.any_placement->lower_bound;
    EXPECT_FALSE(check_any_placement(plan, file, profile, cluster).ok());
  }
  EXPECT_GE(by_stages, 1);
}

TEST(AnyPlacement, SaysWhichPlacementsItIsNotOf) {
  Profile profile = profile_of({2, 2, 20, 2});
  const auto said = [&](JointOptions options, bool split) {
    if (!split) options.restrictions.push_back({Rule::whole_backwards, ""});
    const auto [plan, file] = claimed(profile, options);
    return check_any_placement(plan, file, profile, alike(3, kUnlimited)).passed.front();
  };
  JointOptions whole = joint_options(3, 4), shards = whole;
  shards.shardable = {2};
  EXPECT_THAT(said(whole, false), testing::EndsWith(")"));
  EXPECT_THAT(said(shards, false), testing::EndsWith(", if it shards no layers but 2:L"));
  profile.layers[2].shardable = true;
  EXPECT_THAT(said(whole, false), testing::EndsWith(", if it shards no layers"));
  for (LayerCost& cost : profile.layers) cost.backward_input = cost.backward_weight = cost.forward;
  EXPECT_THAT(said(whole, true), testing::EndsWith(", if it shards no layers"));
  EXPECT_THAT(said(whole, false), testing::EndsWith(", if it shards no layers and splits no backward"));
}

TEST(AnyPlacement, IsRefusedWithFilesOfAnother) {
  const Profile profile = profile_of({2, 2, 2, 2});
  auto [plan, file] = claimed(profile, joint_options(2, 4));
  const auto failures = [&](const Profile& with, int devices) {
    return check_any_placement(plan, file, with, alike(devices, kUnlimited)).failures;
  };
  using testing::ElementsAre;
  using testing::HasSubstr;
  EXPECT_THAT(failures(profile, 3), ElementsAre(testing::EndsWith("is for 2 devices, but 3 are given")));
  EXPECT_THAT(failures(profile, 4), ElementsAre(HasSubstr("one of several replicas or slices")));
  EXPECT_THAT(failures(profile_of({2, 1, 2, 2}), 2), ElementsAre(HasSubstr("is not proved")));
  plan.any_placement->sharded = {9};
  EXPECT_THAT(failures(profile, 2), ElementsAre(HasSubstr("does not have")));
  plan.any_placement.reset();
  EXPECT_THAT(failures(profile, 2), ElementsAre(HasSubstr("claims nothing about other placements")));
}

}  // namespace
}  // namespace ostinato
