// SPDX-License-Identifier: Apache-2.0
#include "search/partition/even_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/partition/chain.h"
#include "search/partition/stage_cost.h"
#include "search/partition/stages.h"

namespace ostinato {

StageCuts cut_evenly(const Profile& profile, const PartitionOptions& options) {
  const int layers = static_cast<int>(profile.layers.size());
  const int stages = static_cast<int>(devices_of_stages(options).size());
  if (stages < 1 || stages > layers)
    throw InputError(
        "", 0, fmt::format("{} cannot be split into {}", counted(layers, "layer"), counted(stages, "stage")));
  std::vector<int> shares(stages, layers / stages);
  for (int s = 0; s < layers % stages; ++s) ++shares[s];
  return cut_as(profile, options, shares);
}

StageCuts cut_as(const Profile& profile, const PartitionOptions& options, const std::vector<int>& layers) {
  const std::vector<int> devices = devices_of_stages(options);
  const auto all = static_cast<int>(profile.layers.size());
  if (layers.size() != devices.size() || std::accumulate(layers.begin(), layers.end(), 0) != all)
    throw InputError(
        "", 0,
        fmt::format(
            "stages of {} layers on {}: give one stage per device, and together the {} layers of the profile",
            fmt::join(layers, ", "), counted(devices.size(), "device"), all));
  const chain::Model model(profile, options);
  StageCuts cuts{.stages = {}, .in_flight = static_cast<int>(devices.size())};
  std::vector<Nanoseconds> busy(model.devices(), 0);
  for (std::size_t s = 0, layer = 0; s < devices.size(); ++s) {
    Stage& stage = cuts.stages.emplace_back();
    stage.devices = {devices[s]};
    for (int i = layers[s]; i > 0; --i) stage.layers.push_back(static_cast<int>(layer++));
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
