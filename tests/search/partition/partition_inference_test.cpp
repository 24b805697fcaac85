// SPDX-License-Identifier: Apache-2.0
// Partitions of forwards alone: what is balanced, what memory holds, and the plans that come out.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>

#include "search/files/error.h"
#include "search/partition/any_fit.h"
#include "search/partition/branches.h"
#include "search/partition/chain.h"
#include "search/partition/inference.h"
#include "search/partition/joint.h"
#include "search/partition/latency.h"
#include "search/partition/layer_operators.h"
#include "search/partition/stages.h"
#include "search/plan/sends_ahead.h"
#include "tests/search/checked.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

Stage on(std::vector<int> devices, const std::vector<int>& layers, bool recompute = false) {
  return {.layers = layers, .devices = std::move(devices), .recompute = recompute};
}

/// What each device of a placement of forwards holds at most.
std::vector<Bytes> held(const Placement& placement) {
  std::vector<Bytes> bytes, workspace(placement.devices.size(), 0);
  for (const Block& block : placement.blocks) {
    EXPECT_EQ(block.memory, 0);
    for (const int d : block.devices) workspace[d] = std::max(workspace[d], block.workspace);
  }
  for (std::size_t d = 0; d < placement.devices.size(); ++d)
    bytes.push_back(placement.devices[d].static_memory + workspace[d]);
  return bytes;
}

bool all_forwards(const Placement& placement) {
  return std::all_of(placement.blocks.begin(), placement.blocks.end(),
                     [](const Block& block) { return block.kind == Kind::forward; });
}

/// The least busy device over all cuts of the chain that fit.
std::optional<Nanoseconds> brute_force(const Profile& profile, const PartitionOptions& options) {
  const int layers = static_cast<int>(profile.layers.size());
  std::optional<Nanoseconds> best;
  std::vector<Stage> stages(options.devices);
  const std::function<void(int, int)> cut = [&](int stage, int first) {
    if (stage == options.devices) {
      if (first < layers) return;
      const Placement placement = place_stages(profile, options, stages);
      Nanoseconds busiest = 0;
      for (const Block& block : placement.blocks) busiest = std::max(busiest, block.time);
      for (const Bytes bytes : held(placement)) {
        if (bytes > options.device_memory) return;
      }
      if (!best || busiest < *best) best = busiest;
      return;
    }
    for (int end = first + 1; end <= layers; ++end) {
      stages[stage].devices = {stage};
      stages[stage].layers = Layers::run(first, end);
      cut(stage + 1, end);
    }
  };
  cut(0, 0);
  return best;
}

/// Layers that hand on what the next one reads.
Profile random_chain(std::mt19937& random, int layers) {
  Profile profile = test::random_profile(random, layers);
  for (int l = 0; l + 1 < layers; ++l) profile.layers[l].output_bytes = profile.layers[l + 1].input_bytes;
  return profile;
}

TEST(PartitionInference, AgreesWithEveryCutWithinTheMemory) {
  std::mt19937 random(71);
  int solved = 0, infeasible = 0;
  for (int round = 0; round < 60; ++round) {
    const Profile profile = random_chain(random, 3 + static_cast<int>(random() % 5));
    const PartitionOptions options{.devices = 1 + static_cast<int>(random() % 3),
                                   .device_memory = 40 + static_cast<Bytes>(random() % 60),
                                   .micro_batches = 4,
                                   .inference = true};
    const auto best = brute_force(profile, options);
    if (!best) {
      ++infeasible;
      EXPECT_THROW(cut_chain(profile, options), InfeasibleError);
      continue;
    }
    ++solved;
    const StageCuts cuts = cut_chain(profile, options);
    EXPECT_EQ(cuts.busiest, *best);
    EXPECT_TRUE(cuts.exact());
    const Placement placement = place_stages(profile, options, cuts.stages);
    EXPECT_TRUE(all_forwards(placement));
    for (const Bytes bytes : held(placement)) EXPECT_LE(bytes, options.device_memory);
    test::searched(placement, 4);
  }
  EXPECT_GT(solved, 15);
  EXPECT_GT(infeasible, 5);
}

TEST(PartitionInference, HoldsParametersMessagesAndWhatAForwardNeeds) {
  Profile profile = test::profile_of({10, 10});
  for (LayerCost& layer : profile.layers) {
    layer.kept = 1000;
    layer.forward_workspace = 100;
    layer.backward_workspace = 100'000;
    layer.parameters = layer.gradients = 7;
    layer.optimizer_state = 70;
    layer.input_bytes = 30;
    layer.output_bytes = 30;
  }
  const PartitionOptions options{.devices = 2, .micro_batches = 1, .inference = true};
  const Placement p = place_stages(profile, options, {on({0}, {0}), on({1}, {1})});
  EXPECT_EQ(p.devices[0].static_memory, 7 + 30 + kSendsAhead * 30);
  EXPECT_EQ(p.devices[1].static_memory, 7 + 30);  // nobody reads its output
  EXPECT_EQ(p.blocks[0].workspace, 30 + 1000 + 100 + 30);
  EXPECT_EQ(p.blocks[1].workspace, p.blocks[0].workspace);
  profile.layers[1].inference_workspace = 200;
  EXPECT_EQ(place_stages(profile, options, {on({0}, {0}), on({1}, {1})}).blocks[1].workspace, 30 + 200 + 30);
}

TEST(PartitionInference, NothingIsProvedFromAForwardThatKeptItsGraph) {
  Profile profile = test::profile_of({10, 10});
  for (LayerCost& layer : profile.layers) {
    layer.parameters = 10;
    layer.kept = 1000;
  }
  JointOptions options{
      .partition = {.devices = 2, .device_memory = 500, .micro_batches = 2, .inference = true}};
  EXPECT_EQ(why_nothing_fits(profile, options), "");
  profile.layers[1].inference_workspace = 495;
  EXPECT_EQ(why_nothing_fits(profile, options),
            "layer 1:L needs at least 505 B, however it is placed, but a device has only 500 B");
  profile.layers[1].inference_workspace = 400;
  EXPECT_EQ(why_nothing_fits(profile, options), "");
}

TEST(PartitionInference, BalancesForwardsWhateverBackwardsTake) {
  Profile profile = test::profile_of({6, 2, 2, 2});
  for (LayerCost& layer : profile.layers) layer.backward = {};  // not even measured
  profile.layers[3].backward.median = 100;
  const PartitionOptions options{.devices = 2, .micro_batches = 4, .inference = true};
  const StageCuts cuts = cut_chain(profile, options);
  EXPECT_EQ(cuts.busiest, 6);
  EXPECT_EQ(cuts.stages[0].layers, Layers{0});
}

TEST(PartitionInference, RefusesWhatOnlyTrainingHas) {
  const Profile profile = test::profile_of({1, 1});
  EXPECT_THROW(check_partition(profile, {.split_backward = true, .inference = true}), InputError);
  EXPECT_THROW(check_partition(profile, {.inference = true, .recompute = Recompute::needed}), InputError);
}

TEST(PartitionInference, ChunksAndShardsHaveForwardsAlone) {
  Profile profile = test::profile_of({8, 2, 2, 2, 2, 8});
  for (LayerCost& layer : profile.layers) layer.input_bytes = layer.output_bytes = 10;
  PartitionOptions options{
      .devices = 2, .chunks = 2, .micro_batches = 4, .inference = true, .sharded = {0, 5}};
  const StageCuts cuts = cut_chain(profile, options);
  const Placement placement = place_stages(profile, options, cuts.stages);
  EXPECT_TRUE(all_forwards(placement));
  EXPECT_EQ(placement.blocks.size(), 6u);
  EXPECT_EQ(cuts.busiest, 4 + 2 + 2 + 4);
  // A shard's messages are whole on each of its devices.
  EXPECT_GE(placement.devices[0].static_memory, 2 * (10 + kSendsAhead * 10));
  test::searched(placement, 4);
}

TEST(PartitionInference, BranchesRunBesideEachOther) {
  const Profile profile = test::two_branches(3, 1, 5, 8);
  const PartitionOptions two{.devices = 2, .micro_batches = 1, .inference = true};
  const Placement quick = place_stages(profile, two, cut_for_latency(profile, two, true).stages);
  EXPECT_TRUE(all_forwards(quick));
  EXPECT_EQ(test::searched(quick, 1).makespan, 4 * 5);
  PartitionOptions three = two;
  three.devices = 3;
  const StageCuts cuts = cut_graph(profile, three);
  EXPECT_EQ(cuts.busiest, 3 * 5);
  const Placement balanced = place_stages(profile, three, cuts.stages);
  EXPECT_TRUE(all_forwards(balanced));
  EXPECT_LE(test::searched(balanced, 1).makespan, 5 * 5);  // of 7 * 5 in a chain
}

TEST(PartitionInference, OperatorsAreForwards) {
  const Profile profile = test::two_branches(2, 1, 5, 8);
  const LayerOperators operators(chain::Model(profile, {.devices = 2, .inference = true}));
  EXPECT_EQ(operators.graph().size(), 5);
}

TEST(PartitionInference, TheJointChoiceIsForLatencyOrForThroughput) {
  Profile profile = test::two_branches(3, 1, 5, 8);
  profile.transfers = {{0, 1, {1, 0}, 0}, {1, 0, {1, 0}, 0}};
  JointOptions options;
  options.partition.devices = 2;
  options.partition.inference = true;
  options.fewer_devices = FewerDevices::none;
  options.search.time_limit_seconds = 0;
  options.partition.micro_batches = options.search.micro_batches = 1;
  options.search.objective = Objective::latency;
  const JointChoice quick = choose_plan(profile, options);
  EXPECT_EQ(quick.candidates[quick.winner].value(), 4 * 5 + 1);  // the longest branch, and what joins it
  options.partition.micro_batches = options.search.micro_batches = 32;
  options.search.objective = Objective::makespan;
  const JointChoice many = choose_plan(profile, options);
  const Candidate& best = many.candidates[many.winner];
  test::expect_holds(*best.plan, *best.placement);
  EXPECT_EQ(best.plan->steady_state.period, 20 * best.plan->steady_state.unroll);  // of 35, on two devices
  EXPECT_TRUE(all_forwards(*best.placement));
  for (const Candidate& candidate : many.candidates)
    EXPECT_EQ(candidate.options.recompute, Recompute::never) << candidate.name;
}

}  // namespace
}  // namespace ostinato
