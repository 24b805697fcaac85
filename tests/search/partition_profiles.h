#pragma once
// Small profiles for the tests of the partition.

#include <random>
#include <string>
#include <vector>

#include "search/partition/profile.h"

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
