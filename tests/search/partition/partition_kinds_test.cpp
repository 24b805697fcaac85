// SPDX-License-Identifier: Apache-2.0
// Kinds of devices with profiles of their own, memory that is nearly full, several chunks, recomputation:
// every partition is tried, and what cut_chain() finds, claims and excludes stands beside it. Memory and
// times are added up here layer by layer.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "search/files/error.h"
#include "search/partition/branches.h"
#include "search/partition/chain.h"
#include "search/partition/joint_candidates.h"
#include "tests/search/partition/partition_profiles.h"
#include "tests/search/rounds.h"

namespace ostinato {
namespace {

using test::random_profile;

constexpr Nanoseconds kNone = std::numeric_limits<Nanoseconds>::max();

struct Drawn {
  Profile profile;
  PartitionOptions options;
};

/// What every partition is judged by.
class EveryPartition {
 public:
  EveryPartition(const Drawn& drawn, int cap) : drawn_(drawn), cap_(cap), cluster_(*drawn.options.cluster) {}

  /// Over all cuts, all stages that recompute, and all orders of the devices where each has one stage.
  Nanoseconds least(bool any_order) {
    least_ = kNone;
    std::vector<int> devices = devices_of_stages(drawn_.options);
    if (!any_order || drawn_.options.chunks > 1) {
      cut(devices, {});
      return least_;
    }
    do cut(devices, {});
    while (std::next_permutation(devices.begin(), devices.end()));
    return least_;
  }

  /// The busiest device; nullopt where these stages do not fit.
  std::optional<Nanoseconds> busiest(const std::vector<Stage>& stages) const {
    std::vector<Nanoseconds> time(cluster_.devices.size(), 0);
    std::vector<Bytes> fixed(time.size(), 0), held(time.size(), 0), most(time.size(), 0);
    const int count = static_cast<int>(stages.size());
    for (int s = 0; s < count; ++s) {
      const int d = stages[s].devices.front(), behind = count - s;
      const Bytes in_flight = std::min({cap_, drawn_.options.micro_batches, behind});
      std::vector<LayerCost> layers;
      for (const int l : stages[s].layers) {
        const LayerCost cost = cost_of(l, cluster_.devices[d].kind);
        time[d] += cost.forward.median * (stages[s].recompute ? 2 : 1) + cost.backward.median;
        fixed[d] += cost.parameters + cost.gradients + cost.optimizer_state;
        layers.push_back(cost);
      }
      auto [kept, workspace] = test::memory_of(layers);
      held[d] +=
          (drawn_.profile.layers[stages[s].layers.front()].input_bytes + (stages[s].recompute ? 0 : kept)) *
          in_flight;
      workspace += stages[s].recompute ? kept : 0;
      most[d] = std::max(most[d], workspace + (cap_ == 1 ? held[d] : 0));
    }
    for (std::size_t d = 0; d < time.size(); ++d) {
      const Bytes memory = cluster_.kinds[cluster_.devices[d].kind].memory;
      if (fixed[d] + most[d] + (cap_ == 1 ? 0 : held[d]) > memory) return std::nullopt;
    }
    return *std::max_element(time.begin(), time.end());
  }

 private:
  LayerCost cost_of(int layer, int kind) const {
    const DeviceKind& of = cluster_.kinds[kind];
    LayerCost cost = (of.profile ? *of.profile : drawn_.profile).layers[layer];
    for (Nanoseconds* time : {&cost.forward.median, &cost.backward.median})
      *time = (*time * kUsualSpeed + of.speed - 1) / of.speed;
    return cost;
  }

  void cut(const std::vector<int>& devices, std::vector<Stage> stages) {
    const int layers = static_cast<int>(drawn_.profile.layers.size());
    const int first = stages.empty() ? 0 : stages.back().layers.back() + 1;
    if (stages.size() == devices.size()) {
      if (first < layers) return;
      if (const auto time = busiest(stages)) least_ = std::min(least_, *time);
      return;
    }
    for (int end = first + 1; end <= layers; ++end) {
      Stage stage{.layers = Layers::run(first, end), .devices = {devices[stages.size()]}};
      for (const bool recompute : {false, true}) {
        if (drawn_.options.recompute == (recompute ? Recompute::never : Recompute::always)) continue;
        stage.recompute = recompute;
        stages.push_back(stage);
        cut(devices, stages);
        stages.pop_back();
      }
    }
  }

  const Drawn& drawn_;
  const int cap_;
  const Cluster& cluster_;
  Nanoseconds least_ = kNone;
};

/// Two or three devices of up to three kinds, some with a profile of their own.
Drawn draw(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Drawn drawn;
  PartitionOptions& options = drawn.options;
  options.chunks = below(3) == 0 ? 2 : 1;
  options.layout = below(2) == 0 ? ChunkLayout::wave : ChunkLayout::looped;
  options.recompute = static_cast<Recompute>(below(3));
  options.micro_batches = 1 + below(5);
  options.devices = 2 + (options.chunks == 1 ? below(2) : 0);
  const int layers = options.devices * options.chunks + below(3);
  const auto profile = [&] {
    Profile made = random_profile(random, layers);
    if (below(2) == 0) test::share_memory(random, made);
    return made;
  };
  drawn.profile = profile();
  Cluster cluster = alike(options.devices, kUnlimited);
  cluster.kinds.resize(1 + below(3));
  for (DeviceKind& kind : cluster.kinds) {
    if (below(4) == 0) kind.speed = kUsualSpeed / (1 + below(3));
    if (below(3) > 0) kind.profile = std::make_shared<Profile>(profile());
    if (below(3) > 0) kind.memory = 40 + below(160);  // from hardly anything fits to nearly all does
  }
  for (ClusterDevice& device : cluster.devices) device.kind = below(static_cast<int>(cluster.kinds.size()));
  options.cluster = std::move(cluster);
  return drawn;
}

struct Seen {
  int exact = 0, tight = 0, infeasible = 0, open = 0;
};

void compare(const Drawn& drawn, Seen& seen) {
  const PartitionOptions& options = drawn.options;
  try {
    const StageCuts cuts = cut_chain(drawn.profile, options);
    EveryPartition all(drawn, cuts.in_flight);
    const Nanoseconds least = all.least(true);
    ASSERT_EQ(all.busiest(cuts.stages), cuts.busiest);
    ASSERT_LE(cuts.lower_bound, least);
    ASSERT_GE(cuts.busiest, least);
    if (options.chunks == 1) {
      ASSERT_EQ(cuts.busiest, least);
      ASSERT_TRUE(cuts.exact());
    }
    seen.exact += cuts.exact() ? 1 : 0;
    seen.tight += cuts.in_flight < options.micro_batches ? 1 : 0;
  } catch (const InfeasibleError& error) {
    ++seen.infeasible;
    ASSERT_EQ(EveryPartition(drawn, 1).least(true), kNone) << error.what();
  } catch (const InputError&) {
    ++seen.open;
    ASSERT_GT(options.chunks, 1);
  }
}

TEST(PartitionKinds, FindsAndClaimsWhatEveryPartitionSays) {
  std::mt19937 random(71);
  Seen seen;
  for (int round = 0; round < test::rounds(300); ++round) {
    SCOPED_TRACE(round);
    ASSERT_NO_FATAL_FAILURE(compare(draw(random), seen));
  }
  EXPECT_GE(seen.exact, 150);
  EXPECT_GE(seen.tight, 20);
  EXPECT_GE(seen.infeasible, 10);
  EXPECT_LE(seen.open, test::rounds(300) / 20);
}

// With more kinds than the exact order of kinds can count, nothing is claimed of other orders.
TEST(PartitionKinds, ManyKindsAreNotProvedInOneOrder) {
  Profile profile = test::profile_of(std::vector<Nanoseconds>(24, 10));
  PartitionOptions options;
  options.cluster = alike(24, kUnlimited);
  options.cluster->kinds.resize(24);
  for (int d = 0; d < 24; ++d) {
    options.cluster->devices[d].kind = d;
    options.cluster->kinds[d].memory = 100 + d;
  }
  profile.layers[0].parameters = 123;  // only the last device holds the first layer
  EXPECT_THROW(cut_chain(profile, options), InputError);
  profile.layers[0].parameters = 0;
  profile.layers[0].forward.median = 1000;
  options.cluster->kinds[23].speed = 100 * kUsualSpeed;
  const StageCuts cuts = cut_chain(profile, options);
  EXPECT_LE(cuts.lower_bound, 30);
}

TEST(PartitionKinds, StagesOverAGraphClaimWhatHolds) {
  std::mt19937 random(73);
  for (int round = 0; round < test::rounds(100); ++round) {
    SCOPED_TRACE(round);
    Drawn drawn = draw(random);
    drawn.options.chunks = 1;
    try {
      const StageCuts cuts = cut_graph(drawn.profile, drawn.options);
      EveryPartition all(drawn, cuts.in_flight);
      const Nanoseconds least = all.least(false);  // in the order of the cluster
      ASSERT_LE(cuts.lower_bound, least);
      ASSERT_GE(cuts.busiest, least);
      if (cuts.exact()) {
        ASSERT_EQ(cuts.busiest, least);
      }
    } catch (const InputError&) {  // which claims nothing
    }
  }
}

TEST(PartitionKinds, TheBoundBeforeAPartitionIsBelowEveryPartition) {
  std::mt19937 random(79);
  for (int round = 0; round < test::rounds(150); ++round) {
    SCOPED_TRACE(round);
    Drawn drawn = draw(random);
    for (DeviceKind& kind : drawn.options.cluster->kinds) kind.memory = kUnlimited;
    drawn.options.recompute = Recompute::never;
    Candidate candidate;
    candidate.options = drawn.options;
    ASSERT_LE(joint::simple_bound(drawn.profile, candidate, 3), 3 * EveryPartition(drawn, 1).least(true));
  }
}

}  // namespace
}  // namespace ostinato
