// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small profiles for the tests of the partition.

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "search/profile/profile.h"

namespace ostinato::test {

inline LayerCost layer(int index, Nanoseconds forward, Nanoseconds backward) {
  LayerCost cost;
  cost.index = index;
  cost.name = std::to_string(index) + ":L";
  cost.forward = {forward, forward, forward, 3};
  cost.backward = {backward, backward, backward, 3};
  return cost;
}

/// Layers that take these times forward, and twice as long backward.
inline Profile profile_of(const std::vector<Nanoseconds>& times) {
  Profile profile;
  profile.model = "chain";
  profile.device.kind = "cpu";
  profile.completeness.complete = true;
  for (std::size_t i = 0; i < times.size(); ++i)
    profile.layers.push_back(layer(static_cast<int>(i), times[i], 2 * times[i]));
  return profile;
}

inline Profile random_profile(std::mt19937& random, int layers) {
  std::uniform_int_distribution<int> upto(0, 9);
  Profile profile = profile_of(std::vector<Nanoseconds>(layers, 0));
  for (LayerCost& cost : profile.layers) {
    cost.forward.median = 1 + upto(random);
    cost.backward.median = 1 + upto(random);
    cost.kept = upto(random);
    cost.parameters = upto(random);
    cost.gradients = cost.parameters;
    cost.optimizer_state = 2 * cost.parameters;
    cost.forward_workspace = upto(random);
    cost.backward_workspace = upto(random);
    cost.input_bytes = 1 + upto(random);
    cost.output_bytes = 1;
  }
  return profile;
}

/// What blocks and reading a batch take beside layers.
inline RankCost some_block_times(std::mt19937& random) {
  std::uniform_int_distribution<Nanoseconds> upto(0, 4);
  return {.forward = upto(random), .backward = upto(random), .read = upto(random)};
}

/// Layers read memory of earlier ones that no backward needs, and show what later ones alone need.
inline void share_memory(std::mt19937& random, Profile& profile) {
  std::uniform_int_distribution<int> upto(0, 9);
  for (LayerCost& cost : profile.layers) {
    for (int from = std::max(0, cost.index - 2); from <= cost.index; ++from) {
      if (from < cost.index && upto(random) < 3) cost.passed.push_back({from, upto(random)});
      const Bytes kept = profile.layers[from].kept;
      if (upto(random) < 3) cost.released.push_back({from, std::min<Bytes>(kept, upto(random))});
    }
  }
}

/// What a stage keeps, and its peak above that: layer by layer, as docs/profiler.md says.
struct StageMemory {
  Bytes kept = 0, workspace = 0;
};

inline StageMemory memory_of(const std::vector<LayerCost>& stage) {
  const auto of_stage = [&](const std::vector<LayerInput>& parts) {
    Bytes bytes = 0;
    for (const LayerInput& part : parts)
      for (const LayerCost& cost : stage) bytes += cost.index == part.layer ? part.bytes : 0;
    return bytes;
  };
  StageMemory memory;
  Bytes peak = 0;
  for (const LayerCost& cost : stage) {
    memory.kept += cost.kept;
    peak = std::max({peak, memory.kept + cost.forward_workspace + of_stage(cost.passed),
                     memory.kept + cost.backward_workspace - of_stage(cost.released)});
  }
  memory.kept -= of_stage(stage.back().released);
  memory.workspace = std::max<Bytes>(0, peak - memory.kept);
  return memory;
}

/// Two branches of equally many equal layers, and layers behind both.
inline Profile two_branches(int each, int behind, Nanoseconds time, Bytes bytes = 0) {
  Profile profile = profile_of(std::vector<Nanoseconds>(2 * each + behind, time));
  for (LayerCost& cost : profile.layers) cost.output_bytes = bytes;
  profile.layers[each].after = std::vector<LayerInput>{};
  if (behind > 0) profile.layers[2 * each].after = {{each - 1, bytes}, {2 * each - 1, bytes}};
  return profile;
}

/// Whole time of a layer.
inline Nanoseconds time_of(const LayerCost& cost) { return cost.forward.median + cost.backward.median; }

}  // namespace ostinato::test
