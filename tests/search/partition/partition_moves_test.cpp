// SPDX-License-Identifier: Apache-2.0
// Local search over partitions: what a move may do, and how close choose_plan() comes to every division of a
// small model, whatever its cuts and devices. OSTINATO_ROUNDS=30 draws thirty times as often.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "search/bounds/bounds.h"
#include "search/partition/joint.h"
#include "search/partition/joint_candidates.h"
#include "search/partition/joint_climb.h"
#include "search/partition/joint_moves.h"
#include "search/partition/stages.h"
#include "tests/search/checked.h"
#include "tests/search/partition/joint_options.h"
#include "tests/search/partition/partition_profiles.h"
#include "tests/search/rounds.h"

namespace ostinato {
namespace {

using joint::Stages;

Stage on(int device, const std::vector<int>& layers) { return {.layers = layers, .devices = {device}}; }

std::vector<int> layers_of(const Stages& stages) {
  std::vector<int> layers;
  for (const Stage& stage : stages) layers.insert(layers.end(), stage.layers.begin(), stage.layers.end());
  return layers;
}

bool are_neighbours(const Stages& a, const Stages& b) {
  const std::vector<Stages> all = joint::neighbours(a, 3, true, true);
  return std::find(all.begin(), all.end(), b) != all.end();
}

TEST(Moves, EveryNeighbourHoldsAllLayersInOrderAndUsesTheSameDevices) {
  const Stage shard{.layers = {5}, .devices = {0, 1, 2}};
  const Stages stages = {on(0, {0, 1, 2}), on(1, {3, 4}), shard, on(2, {6}), on(0, {7, 8})};
  const std::vector<Stages> all = joint::neighbours(stages, 3, true, true);
  EXPECT_GT(all.size(), 20u);
  for (const Stages& next : all) {
    EXPECT_NE(next, stages);
    std::vector<int> expected(9);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(layers_of(next), expected);
    EXPECT_EQ(std::count(next.begin(), next.end(), shard), 1);
    for (const Stage& stage : next) EXPECT_FALSE(stage.layers.empty());
  }
}

TEST(Moves, AreThoseThatTheHeaderNames) {
  const Stages stages = {on(0, {0, 1}), on(1, {2}), on(0, {3, 4, 5})};
  EXPECT_TRUE(are_neighbours(stages, {on(0, {0}), on(1, {1}), on(0, {2, 3, 4, 5})}));  // along the chain
  EXPECT_TRUE(are_neighbours(stages, {on(0, {0, 1, 2}), on(1, {3}), on(0, {4, 5})}));
  EXPECT_TRUE(are_neighbours(stages, {on(1, {0, 1}), on(0, {2}), on(0, {3, 4, 5})}));           // exchanged
  EXPECT_TRUE(are_neighbours(stages, {on(1, {0, 1}), on(0, {2}), on(1, {3, 4, 5})}));           // all of them
  EXPECT_TRUE(are_neighbours(stages, {on(0, {0, 1}), on(1, {2}), on(2, {3, 4, 5})}));           // moved
  EXPECT_TRUE(are_neighbours(stages, {on(0, {0, 1}), on(1, {2, 3, 4, 5})}));                    // joined
  EXPECT_TRUE(are_neighbours(stages, {on(0, {0, 1}), on(1, {2}), on(0, {3}), on(2, {4, 5})}));  // divided
  Stages again = stages;
  again[2].recompute = true;
  EXPECT_TRUE(are_neighbours(stages, again));
  Stages in_part = {on(0, {0, 1}), on(1, {2}), on(0, {3}), on(0, {4, 5})};
  in_part[2].recompute = true;
  EXPECT_TRUE(are_neighbours(stages, in_part));
  EXPECT_TRUE(are_neighbours(in_part, stages));  // joined
}

TEST(Moves, LeaveNoDeviceWithoutItsLastStage) {
  for (const Stages& next : joint::neighbours({on(0, {0, 1}), on(1, {2, 3})}, 2, false, true)) {
    std::vector<int> used(2, 0);
    for (const Stage& stage : next) used[stage.devices.front()] = 1;
    EXPECT_EQ(used, (std::vector<int>{1, 1}));
  }
}

/// The shortest plan over every division of the layers into at most `most` stages on any devices.
class EveryDivision {
 public:
  EveryDivision(const Profile& profile, const JointOptions& options, int most)
      : profile_(profile), options_(options), most_(most) {}

  std::optional<Nanoseconds> least() {
    divide({}, 0);
    return least_;
  }

 private:
  void divide(Stages made, int first) {
    const int layers = static_cast<int>(profile_.layers.size());
    if (first == layers) return judge(made);
    if (static_cast<int>(made.size()) == most_) return;
    const int devices = static_cast<int>(cluster_of(options_.partition).devices.size());
    for (int d = 0; d < devices; ++d) {
      if (!made.empty() && made.back().devices.front() == d) continue;  // one stage, then
      made.push_back(on(d, {}));
      for (int end = first + 1; end <= layers; ++end) {
        made.back().layers.push_back(end - 1);
        divide(made, end);
      }
      made.pop_back();
    }
  }

  void judge(const Stages& stages) {
    const Placement placement = place_stages(profile_, options_.partition, stages);
    if (!step_fits(facts_of(profile_, options_.partition, stages), placement)) return;
    const Nanoseconds bound = Bounds(Instance(placement)).makespan(options_.search.micro_batches);
    if (least_ && bound >= *least_) return;
    try {
      const Plan plan = search(placement, options_.search);
      if (!least_ || plan.makespan < *least_) least_ = plan.makespan;
    } catch (const std::runtime_error&) {  // it does not fit
    }
  }

  const Profile& profile_;
  const JointOptions& options_;
  const int most_;
  std::optional<Nanoseconds> least_;
};

/// Some slower, with more or less memory; between two of them a transfer takes time.
Cluster unlike(std::mt19937& random, int devices, Bytes memory) {
  Cluster cluster = alike(devices, memory);
  cluster.kinds.push_back(cluster.kinds.front());
  cluster.kinds[1].speed = kUsualSpeed / (2 + static_cast<int>(random() % 2));
  if (memory != kUnlimited) cluster.kinds[1].memory = memory * (1 + static_cast<int>(random() % 3)) / 2;
  cluster.devices[random() % static_cast<unsigned>(devices)].kind = 1;
  cluster.within = {.latency = static_cast<Nanoseconds>(random() % 3), .bytes_per_second = 10'000'000'000};
  return cluster;
}

/// No plan is longer than the shortest by more than `percent`, and 98 % of them are as short.
void expect_close_to_every_division(unsigned seed, bool devices_differ, int percent) {
  std::mt19937 random(seed);
  const int rounds = test::rounds(10);
  int equal = 0, known = 0;
  for (int round = 0; round < rounds; ++round) {
    const int devices = 2 + static_cast<int>(random() % 2), layers = 4 + static_cast<int>(random() % 3);
    const Profile profile = test::random_profile(random, layers);
    JointOptions options;
    options.partition.devices = devices;
    options.partition.micro_batches = options.search.micro_batches = 2 + static_cast<int>(random() % 4);
    options.search.time_limit_seconds = 0;
    options.search.effort = 20;
    options.recompute = false;
    if (random() % 2) options.partition.device_memory = 30 + static_cast<int>(random() % (60u * layers));
    if (devices_differ) options.partition.cluster = unlike(random, devices, options.partition.device_memory);
    const std::optional<Nanoseconds> least = EveryDivision(profile, options, 2 * devices).least();
    if (!least) continue;
    ++known;
    SCOPED_TRACE(fmt::format("round {}", round));
    const JointChoice choice = choose_plan(profile, options);
    const Candidate& best = choice.candidates[choice.winner];
    test::expect_holds(*best.plan, *best.placement);
    EXPECT_LE(best.value(), *least + *least * percent / 100) << best.name;
    equal += best.value() <= *least ? 1 : 0;
  }
  EXPECT_GE(known, rounds / 2);
  EXPECT_GE(equal * 100, known * 98 - 100) << "of " << known;
  testing::Test::RecordProperty("equal", equal);
  testing::Test::RecordProperty("known", known);
}

TEST(Moves, ComeCloseToEveryDivisionOfSmallModels) { expect_close_to_every_division(57, false, 1); }

TEST(Moves, ComeCloseToEveryDivisionOverUnlikeDevices) { expect_close_to_every_division(59, true, 6); }

TEST(Moves, AClimbLeavesItsPlanToTheFullSearchThatItsStartHasHad) {
  const Profile profile = test::profile_of({7, 13, 5, 17, 3, 11, 8, 6, 10});
  JointOptions options = test::joint_options(3, 6);
  options.moves = false;
  JointChoice choice = choose_plan(profile, options);
  Candidate& start = choice.candidates[choice.winner];
  start.whole = start.cut = true;
  const std::optional<Candidate> moved = joint::climb(profile, options, start, std::nullopt);
  ASSERT_TRUE(moved);
  EXPECT_LT(moved->value(), start.value());
  EXPECT_FALSE(moved->whole || moved->cut);
}

TEST(Moves, GivesTheSameMovesAtAnyNumberOfThreads) {
  std::mt19937 random(58);
  const Profile profile = test::random_profile(random, 9);
  JointOptions options;
  options.partition.devices = 3;
  options.partition.micro_batches = options.search.micro_batches = 6;
  options.search.time_limit_seconds = 0;
  options.search.effort = 5;
  JointOptions threads = options;
  threads.search.threads = 3;
  const JointChoice a = choose_plan(profile, options), b = choose_plan(profile, threads);
  ASSERT_EQ(a.candidates.size(), b.candidates.size());
  EXPECT_EQ(a.winner, b.winner);
  EXPECT_EQ(a.candidates[a.winner].cuts->stages, b.candidates[b.winner].cuts->stages);
}

Profile with_halves(const std::vector<Nanoseconds>& times) {
  Profile profile = test::profile_of(times);
  for (LayerCost& layer : profile.layers) {
    layer.backward_input = {layer.backward.median / 2, 0, 0, 3};
    layer.backward_weight = {layer.backward.median / 2, 0, 0, 3};
  }
  return profile;
}

TEST(Moves, ANameSaysWhatTheStagesAre) {
  Candidate from, moved;
  from.name = "1 chunk per device, split";
  from.cuts = StageCuts{.stages = {on(0, {0, 1}), on(1, {2, 3})}};
  moved.cuts = StageCuts{.stages = {on(0, {0}), on(1, {1, 2, 3})}};
  EXPECT_EQ(joint::moved_name(from, moved), "1 chunk per device, split, moved");
  moved.cuts->stages = {on(1, {0}), on(0, {1, 2}), on(1, {3})};
  EXPECT_EQ(joint::moved_name(from, moved), "3 chunks, at most 2 per device, split, moved");
}

TEST(Moves, SplitBackwardsAreTakenWhereTheyPayAndMayBeLeftOut) {
  const Profile profile = with_halves({4, 4, 4, 4, 4, 4, 4, 4});
  JointOptions options;
  options.partition.devices = 4;
  options.partition.micro_batches = options.search.micro_batches = 4;
  options.search.time_limit_seconds = 0;
  const JointChoice any = choose_plan(profile, options);
  EXPECT_TRUE(any.candidates[any.winner].options.split_backward);
  options.restrictions.push_back({Rule::whole_backwards, ""});
  const JointChoice whole = choose_plan(profile, options);
  EXPECT_FALSE(whole.candidates[whole.winner].options.split_backward);
  EXPECT_LT(any.candidates[any.winner].value(), whole.candidates[whole.winner].value());
}

}  // namespace
}  // namespace ostinato
