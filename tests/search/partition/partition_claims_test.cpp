// SPDX-License-Identifier: Apache-2.0
// What cut_chain() claims, beside every placement of small chains that place_stages() makes: with messages,
// shards, waves, split backwards and stages that recompute in part.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "search/bounds/feasible.h"
#include "search/files/error.h"
#include "search/partition/branches.h"
#include "search/partition/chain.h"
#include "search/partition/stages.h"
#include "search/placement/placement_toml.h"
#include "tests/search/partition/partition_profiles.h"
#include "tests/search/rounds.h"

namespace ostinato {
namespace {

constexpr Nanoseconds kNone = std::numeric_limits<Nanoseconds>::max();

struct Drawn {
  Profile profile;
  PartitionOptions options;
};

Drawn draw(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Drawn drawn;
  PartitionOptions& options = drawn.options;
  options.devices = 1 + below(3);
  options.chunks = 1 + below(2);
  options.layout = below(2) == 0 ? ChunkLayout::wave : ChunkLayout::looped;
  options.micro_batches = 1 + below(4);
  options.recompute = static_cast<Recompute>(below(4));
  options.split_backward = below(3) == 0;
  options.device_memory = 30 + below(160);
  const int layers = options.devices * options.chunks + below(3);
  Profile& profile = drawn.profile = test::random_profile(random, layers);
  if (below(3) == 0) test::share_memory(random, profile);
  if (below(2) == 0) profile.rank = test::some_block_times(random);
  if (below(2) == 0) profile.rank.buffers = 1 + below(2);
  for (LayerCost& cost : profile.layers) {
    cost.output_bytes = below(10);
    if (below(3) == 0) cost.recompute = below(12);
    if (below(4) == 0) cost.sent = below(10);
    if (below(4) == 0) cost.step_together = cost.step_alone = below(20);
    if (options.split_backward && below(5) > 0) {
      cost.backward_input = cost.backward_weight = {1 + below(9), 1, 1, 3};
      cost.waiting = below(30);
      cost.weight_workspace = below(9);
    }
  }
  if (options.devices > 1 && below(2) == 0) {  // beside as many others as there are stages
    profile.layers.push_back(profile.layers.back());
    profile.layers.back().index = layers;
    options.sharded = {below(layers + 1)};
  }
  return drawn;
}

/// Calls `visit` with the stages of every placement: every cut, and of every stage any number of its first
/// layers that recompute.
class EveryPlacement {
 public:
  EveryPlacement(const Drawn& drawn, std::function<void(const std::vector<Stage>&)> visit)
      : options_(drawn.options), visit_(std::move(visit)), layers_(drawn.profile.layers.size()) {
    devices_ = devices_of_stages(options_);
    cut({}, 0, 0);
  }

 private:
  bool is_shard(int layer) const { return std::ranges::binary_search(options_.sharded, layer); }

  void cut(const std::vector<Stage>& before, std::size_t stage, int first) {
    if (first < layers_ && is_shard(first)) {
      std::vector<int> all(options_.devices);
      std::iota(all.begin(), all.end(), 0);
      return cut(with(before, {.layers = {first}, .devices = all}), stage, first + 1);
    }
    if (stage == devices_.size()) {
      if (first == layers_) visit_(before);
      return;
    }
    for (int end = first + 1; end <= layers_ && !is_shard(end - 1); ++end) {
      for (int kept_from = first; kept_from <= end; ++kept_from) {
        if (!may(kept_from - first, end - first)) continue;
        std::vector<Stage> stages = before;
        if (kept_from > first) stages = with(stages, of_run(stage, first, kept_from, true));
        if (kept_from < end) stages = with(stages, of_run(stage, kept_from, end, false));
        cut(stages, stage + 1, end);
      }
    }
  }

  bool may(int recomputed, int layers) const {
    switch (options_.recompute) {
      case Recompute::never:
        return recomputed == 0;
      case Recompute::needed:
        return recomputed == 0 || recomputed == layers;
      case Recompute::partly:
        return true;
      default:
        return recomputed == layers;
    }
  }

  Stage of_run(std::size_t stage, int first, int end, bool recompute) const {
    return {.layers = Layers::run(first, end), .devices = {devices_[stage]}, .recompute = recompute};
  }

  static std::vector<Stage> with(std::vector<Stage> stages, const Stage& stage) {
    stages.push_back(stage);
    return stages;
  }

  const PartitionOptions& options_;
  const std::function<void(const std::vector<Stage>&)> visit_;
  const int layers_;
  std::vector<int> devices_;
};

/// Whether one micro-batch fits, block after block as they are listed.
bool fits_as_listed(const Placement& placement, Bytes memory) {
  std::vector<Bytes> now;
  for (const Device& device : placement.devices) now.push_back(device.static_memory);
  for (const Block& block : placement.blocks) {
    for (const int d : block.devices) {
      if (now[d] + std::max<Bytes>(0, block.memory) + block.workspace > memory) return false;
      now[d] += block.memory;
    }
  }
  return true;
}

/// In any order.
bool one_fits(const Placement& placement, Bytes memory) {
  if (fits_as_listed(placement, memory)) return true;
  try {
    const Instance instance(placement);
    return !fitting_order(instance, Bounds(instance), 1).empty();
  } catch (const InfeasibleError&) {
    return false;
  }
}

/// The busiest device; nullopt where not even one micro-batch fits, nor `cap` as 1F1B has them in flight.
std::optional<Nanoseconds> busiest(const Drawn& drawn, const std::vector<Stage>& stages, int cap) {
  const Placement placement = place_stages(drawn.profile, drawn.options, stages);
  if (!step_fits(facts_of(drawn.profile, drawn.options, stages), placement)) return std::nullopt;
  std::vector<Nanoseconds> time(placement.devices.size(), 0);
  if (!one_fits(placement, drawn.options.device_memory)) return std::nullopt;
  std::vector<Bytes> held(time.size()), most(time.size(), 0);
  for (std::size_t d = 0; d < time.size(); ++d) held[d] = placement.devices[d].static_memory;
  for (const Block& block : placement.blocks) {
    const int behind = static_cast<int>(stages.size()) - std::stoi(block.name.substr(1));
    for (const int d : block.devices) {
      time[d] += block.time;
      most[d] = std::max(most[d], block.workspace);
      if (block.memory > 0) held[d] += block.memory * std::min({cap, drawn.options.micro_batches, behind});
    }
  }
  for (std::size_t d = 0; d < time.size() && cap > 1; ++d)
    if (held[d] + most[d] > drawn.options.device_memory) return std::nullopt;
  return *std::ranges::max_element(time);
}

struct Seen {
  int exact = 0, tight = 0, infeasible = 0, open = 0;
};

void compare(const Drawn& drawn, Seen& seen) {
  int cap = 1;
  std::optional<StageCuts> cuts;
  bool proved_empty = false;
  try {
    cuts = cut_chain(drawn.profile, drawn.options);
    cap = cuts->in_flight;
  } catch (const InfeasibleError&) {
    proved_empty = true;
  } catch (const InputError&) {  // which claims nothing
    ++seen.open;
  }
  Nanoseconds least = kNone;
  EveryPlacement(drawn, [&](const std::vector<Stage>& stages) {
    if (const auto time = busiest(drawn, stages, cap)) least = std::min(least, *time);
  });
  seen.infeasible += proved_empty ? 1 : 0;
  if (proved_empty) {
    ASSERT_EQ(least, kNone);
  }
  if (!cuts) return;
  ASSERT_EQ(busiest(drawn, cuts->stages, 1), cuts->busiest);  // it runs
  ASSERT_LE(cuts->lower_bound, least);
  seen.exact += cuts->exact() ? 1 : 0;
  seen.tight += cap < std::min<int>(drawn.options.micro_batches, static_cast<int>(cuts->stages.size()));
}

TEST(PartitionClaims, HoldForEveryPlacement) {
  std::mt19937 random(83);
  Seen seen;
  const int rounds = test::rounds(2000);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    ASSERT_NO_FATAL_FAILURE(compare(draw(random), seen));
  }
  EXPECT_GE(seen.exact, 200);
  EXPECT_GE(seen.tight, 50);
  EXPECT_GE(seen.infeasible, 100);
  EXPECT_LE(seen.open, rounds / 15);
}

// A stage that recomputes in part is two, with the blocks of two.
TEST(PartitionClaims, PartsOfAStageTakeTheBlocksOfTwo) {
  Profile profile = test::profile_of({100, 100});
  profile.rank.forward = profile.rank.backward = 50;
  profile.layers[0].kept = profile.layers[1].backward_workspace = 100;
  for (LayerCost& cost : profile.layers) cost.input_bytes = 10;
  profile.layers[1].recompute = 10;
  const PartitionOptions options{.device_memory = 150, .recompute = Recompute::partly};
  const StageCuts cuts = cut_chain(profile, options);
  EXPECT_EQ(cuts.stages.size(), 2U);
  EXPECT_EQ(cuts.busiest, 900);
}

// A stage of two layers that both read from the stage before keeps both inputs; its estimate has one.
TEST(PartitionClaims, WhatTheEstimateLeavesOutIsChecked) {
  Profile profile = test::profile_of({10, 5, 5});
  profile.layers[1].input_bytes = 50;
  profile.layers[2].input_bytes = 60;
  profile.layers[2].after = {{0, 50}, {1, 10}};
  PartitionOptions options{.devices = 2, .device_memory = 60};
  const auto check = [&] {
    const std::vector<Stage> stages = cut_chain(profile, options).stages;
    check_memory(facts_of(profile, options, stages), place_stages(profile, options, stages), 1);
  };
  EXPECT_THROW(check(), InputError);
  options.device_memory = 100;
  check();
}

// The second half of the last backward may run when the first stage of the device holds nothing any more.
TEST(PartitionClaims, SecondHalvesMayRunLate) {
  Profile profile = test::profile_of({10, 10});
  for (LayerCost& cost : profile.layers) {
    cost.kept = 10;
    cost.backward_input = cost.backward_weight = {10, 10, 10, 3};
  }
  profile.layers[1].weight_workspace = 50;
  const PartitionOptions options{.devices = 1, .chunks = 2, .device_memory = 65, .split_backward = true};
  EXPECT_THROW(cut_chain(profile, options), InputError);  // which proves nothing
}

// Two layers of the second stage read the first layer's output: one message, in one buffer.
TEST(PartitionClaims, AnOutputIsCarriedToAStageOnce) {
  Profile profile = test::profile_of({2, 1, 1});
  profile.rank.buffers = 1;
  profile.layers[0].output_bytes = 10;
  profile.layers[1].output_bytes = 1;
  profile.layers[2].after = {{0, 10}, {1, 1}};
  EXPECT_EQ(cut_graph(profile, {.devices = 2, .device_memory = 25}).busiest, 6);
}

// Of two chunks, only one that recomputes its first layer and keeps the next fits beside the other.
TEST(PartitionClaims, RecomputingWholeStagesProvesNothingOfParts) {
  Profile profile = test::profile_of({100, 100, 100});
  for (LayerCost& cost : profile.layers) {
    cost.kept = 100;
    cost.input_bytes = 10;
  }
  PartitionOptions options{.devices = 1, .chunks = 2, .device_memory = 150, .recompute = Recompute::partly};
  EXPECT_THROW(cut_chain(profile, options), InputError);
  options.device_memory = 109;  // not even one layer
  EXPECT_THROW(cut_chain(profile, options), InfeasibleError);
}

}  // namespace
}  // namespace ostinato
