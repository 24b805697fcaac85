// SPDX-License-Identifier: Apache-2.0
// Stages over a graph, against every assignment of layers to stages, and as placements.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>

#include "search/files/error.h"
#include "search/partition/branches.h"
#include "search/partition/chain.h"
#include "search/partition/stages.h"
#include "search/profile/layer_graph.h"
#include "tests/search/checked.h"
#include "tests/search/partition/partition_profiles.h"

namespace ostinato {
namespace {

using test::time_of;

Profile random_graph(std::mt19937& random, int layers) {
  Profile profile = test::random_profile(random, layers);
  for (int l = 1; l < layers; ++l) {
    std::set<int> inputs;
    for (unsigned i = random() % 3; i > 0; --i)
      inputs.insert(static_cast<int>(random() % static_cast<unsigned>(l)));
    profile.layers[l].after.emplace();
    for (const int input : inputs) profile.layers[l].after->push_back({input, 1});
  }
  return profile;
}

bool connected(const LayerGraph& graph, const std::vector<int>& stage_of, int stage) {
  std::vector<int> reached;
  int size = 0;
  for (int l = 0; l < graph.layers(); ++l) {
    if (stage_of[l] != stage) continue;
    ++size;
    if (reached.empty()) reached.push_back(l);
  }
  for (std::size_t i = 0; i < reached.size(); ++i) {
    for (int l = 0; l < graph.layers(); ++l) {
      if (stage_of[l] != stage || std::find(reached.begin(), reached.end(), l) != reached.end()) continue;
      const auto joins = [&](int a, int b) {
        return std::any_of(graph.inputs(a).begin(), graph.inputs(a).end(),
                           [&](const LayerInput& input) { return input.layer == b; });
      };
      if (joins(l, reached[i]) || joins(reached[i], l)) reached.push_back(l);
    }
  }
  return size > 0 && static_cast<int>(reached.size()) == size;
}

/// The least busiest device over all assignments in which no layer reads from a later stage.
std::optional<Nanoseconds> brute_force(const Profile& profile, int devices) {
  const LayerGraph graph(profile);
  const int layers = graph.layers();
  std::vector<int> stage_of(layers, 0);
  std::optional<Nanoseconds> best;
  for (;;) {
    bool valid = true;
    std::vector<Nanoseconds> load(devices, 0);
    for (int l = 0; l < layers; ++l) {
      load[stage_of[l]] += time_of(profile.layers[l]);
      for (const LayerInput& input : graph.inputs(l)) valid = valid && stage_of[input.layer] <= stage_of[l];
    }
    for (int s = 0; s < devices && valid; ++s) valid = connected(graph, stage_of, s);
    const Nanoseconds busiest = *std::max_element(load.begin(), load.end());
    if (valid && (!best || busiest < *best)) best = busiest;
    int l = 0;
    while (l < layers && ++stage_of[l] == devices) stage_of[l++] = 0;
    if (l == layers) return best;
  }
}

TEST(PartitionBranches, AgreesWithEveryAssignmentOfSmallGraphs) {
  std::mt19937 random(41);
  int solved = 0;
  for (int round = 0; round < 60; ++round) {
    const int devices = 1 + static_cast<int>(random() % 3);
    const Profile profile = random_graph(random, devices + static_cast<int>(random() % 5));
    const PartitionOptions options{.devices = devices, .micro_batches = 4};
    const auto best = brute_force(profile, devices);
    if (!best) {
      EXPECT_THROW(cut_graph(profile, options), InputError);
      continue;
    }
    ++solved;
    const StageCuts cuts = cut_graph(profile, options);
    EXPECT_EQ(cuts.busiest, *best) << "round " << round;
    EXPECT_TRUE(cuts.exact());
    const Placement placement = place_stages(profile, options, cuts.stages);
    test::expect_holds(test::searched(placement, 2), placement);
  }
  EXPECT_GT(solved, 20);
}

TEST(PartitionBranches, OnAChainTheyAreTheChainPartition) {
  std::mt19937 random(43);
  for (int round = 0; round < 20; ++round) {
    const Profile profile = test::random_profile(random, 12);
    const PartitionOptions options{.devices = 4, .micro_batches = 8};
    EXPECT_EQ(cut_graph(profile, options).busiest, cut_chain(profile, options).busiest);
  }
}

TEST(PartitionBranches, BranchesRunBesideEachOther) {
  // Two branches of four layers and two layers behind them, on five devices: two layers each.
  const Profile profile = test::two_branches(4, 2, 5, 100);
  const PartitionOptions options{.devices = 5, .micro_batches = 4};
  const StageCuts cuts = cut_graph(profile, options);
  EXPECT_EQ(cuts.busiest, 30);
  const Placement graph = place_stages(profile, options, cuts.stages);
  ASSERT_EQ(graph.stages.size(), 5u);
  EXPECT_EQ(graph.blocks[graph.find_block("s4.F")].after.size(), 2u);
  const Placement chain = partition_chain(profile, options);
  // The same stages; what reads nothing from the stage before it does not wait for it.
  EXPECT_EQ(test::searched(graph, 4).makespan, test::searched(chain, 4).makespan);
  EXPECT_LT(test::searched(graph, 1).makespan, 10 * 15);
}

TEST(PartitionBranches, AShardJoinsThem) {
  Profile profile = test::two_branches(3, 1, 6);
  const PartitionOptions options{.devices = 2, .micro_batches = 4, .sharded = {6}};
  const StageCuts cuts = cut_graph(profile, options);
  ASSERT_EQ(cuts.stages.size(), 3u);
  EXPECT_EQ(cuts.stages[2].devices.size(), 2u);
  EXPECT_EQ(cuts.busiest, 3 * 18 + 9);
  const Placement placement = place_stages(profile, options, cuts.stages);
  test::expect_holds(test::searched(placement, 3), placement);
}

TEST(PartitionBranches, MemoryIsCounted) {
  Profile profile = test::two_branches(3, 2, 6);
  for (LayerCost& cost : profile.layers) cost.parameters = 10;
  PartitionOptions options{.devices = 3, .device_memory = 30, .micro_batches = 4};
  for (const Stage& stage : cut_graph(profile, options).stages) EXPECT_LE(stage.layers.size(), 3u);
  options.device_memory = 20;
  EXPECT_THROW(cut_graph(profile, options), InputError);
}

/// A long chain of layers, each of which reads `leaves` others that take no time: the downsets are too many.
TEST(PartitionBranches, LayersThatTakeNoTimeAreJoined) {
  constexpr int kLeaves = 3, kLayers = 16;
  std::vector<Nanoseconds> times;
  for (int l = 0; l < kLayers; ++l) {
    times.insert(times.end(), kLeaves, 0);
    times.push_back(10 + l % 5);
  }
  Profile profile = test::profile_of(times), chain = profile;
  for (int l = 0; l < kLayers; ++l) {
    for (int i = 0; i < kLeaves; ++i) profile.layers[l * (kLeaves + 1) + i].after.emplace();
    std::vector<LayerInput>& after = profile.layers[l * (kLeaves + 1) + kLeaves].after.emplace();
    if (l > 0) after.push_back({l * (kLeaves + 1) - 1, 1});
    for (int i = 0; i < kLeaves; ++i) after.push_back({l * (kLeaves + 1) + i, 1});
  }
  const PartitionOptions options{.devices = 4, .micro_batches = 8};
  const StageCuts cuts = cut_graph(profile, options);
  EXPECT_EQ(cuts.busiest, cut_chain(chain, options).busiest);
  EXPECT_LE(cuts.lower_bound, cuts.busiest);
}

constexpr int kLong = 12;

/// Branches of twelve layers between two layers.
Profile branches_of(const std::vector<Nanoseconds>& times) {
  Profile profile = test::profile_of(times);
  const int last = static_cast<int>(times.size()) - 1;
  profile.layers[last].after.emplace();
  for (int l = 1; l < last; ++l) {
    profile.layers[l].after = {{l % kLong == 1 ? 0 : l - 1, 1}};
    if (l % kLong == 0) profile.layers[last].after->push_back({l, 1});
  }
  return profile;
}

/// Eight branches: 13^8 downsets.
TEST(PartitionBranches, SmallLayersOfManyBranchesAreJoined) {
  const int last = 8 * kLong + 1;
  const Profile profile = branches_of(std::vector<Nanoseconds>(last + 1, 10));
  const PartitionOptions options{.devices = 2, .micro_batches = 8};
  const StageCuts cuts = cut_graph(profile, options);
  std::vector<int> seen(profile.layers.size(), 0);
  for (const Stage& stage : cuts.stages)
    for (const int l : stage.layers) ++seen[l];
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), last + 1);
  EXPECT_EQ(cuts.lower_bound, (last + 1) / 2 * time_of(profile.layers[0]));
  EXPECT_LE(cuts.busiest, cuts.lower_bound * 21 / 20);
  const Placement placement = place_stages(profile, options, cuts.stages);
  test::expect_holds(test::searched(placement, 2), placement);
}

/// What is joined ends up on one device, but a run of layers may end within it.
TEST(PartitionBranches, WhereLayersAreJoinedTheyAreNoWorseThanTheChain) {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    std::mt19937 random(seed);
    std::vector<Nanoseconds> times(6 * kLong + 2);
    for (Nanoseconds& time : times) time = 1 + random() % 100;
    const Profile profile = branches_of(times);
    const PartitionOptions options{.devices = 6, .micro_batches = 8};
    const StageCuts cuts = cut_graph(profile, options);
    EXPECT_LE(cuts.busiest, cut_chain(profile, options).busiest) << seed;
    EXPECT_LE(cuts.lower_bound, cuts.busiest) << seed;
    if (seed > 2) continue;
    const Placement placement = place_stages(profile, options, cuts.stages);
    test::expect_holds(test::searched(placement, 2), placement);
  }
}

TEST(PartitionBranches, TooManyBranchesAreRefused) {
  Profile profile = test::profile_of(std::vector<Nanoseconds>(20, 1));
  for (LayerCost& cost : profile.layers) cost.after.emplace();  // 2^20 sets
  EXPECT_THROW(cut_graph(profile, {.devices = 2}), InputError);
}

TEST(LayerGraph, CountsAnOutputOnceAcrossACut) {
  Profile profile = test::profile_of({1, 1, 1, 1});
  profile.layers[2].after = {{0, 5}, {1, 7}};
  profile.layers[3].after = {{0, 5}, {2, 1}};
  const LayerGraph graph(profile);
  EXPECT_FALSE(graph.is_chain());
  EXPECT_EQ(graph.bytes_across(2), 12);
  EXPECT_EQ(graph.bytes_across(3), 6);
  EXPECT_TRUE(LayerGraph(test::profile_of({1, 1})).is_chain());
}

}  // namespace
}  // namespace ostinato
