// SPDX-License-Identifier: Apache-2.0
#include "search/partition/even_split.h"

#include <fmt/format.h>

#include <algorithm>

#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/partition/chain.h"
#include "search/partition/stage_cost.h"
#include "search/partition/stages.h"

namespace ostinato {

StageCuts cut_evenly(const Profile& profile, const PartitionOptions& options) {
  const int layers = static_cast<int>(profile.layers.size());
  const std::vector<int> devices = devices_of_stages(options);
  const int stages = static_cast<int>(devices.size());
  if (stages < 1 || stages > layers)
    throw InputError(
        "", 0, fmt::format("{} cannot be split into {}", counted(layers, "layer"), counted(stages, "stage")));
  const chain::Model model(profile, options);
  StageCuts cuts{.stages = {}, .in_flight = stages};
  std::vector<Nanoseconds> busy(model.devices(), 0);
  for (int s = 0, layer = 0; s < stages; ++s) {
    Stage& stage = cuts.stages.emplace_back();
    stage.devices = {devices[s]};
    for (int i = layers / stages + (s < layers % stages ? 1 : 0); i > 0; --i) stage.layers.push_back(layer++);
    const chain::StageCost cost = cost_of_stage(model, stage);
    busy[devices[s]] += cost.forward + cost.backward;
  }
  cuts.busiest = *std::max_element(busy.begin(), busy.end());
  return cuts;
}

Placement even_split(const Profile& profile, const PartitionOptions& options) {
  return place_stages(profile, options, cut_evenly(profile, options).stages);
}

}  // namespace ostinato
