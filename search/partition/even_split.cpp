#include "search/partition/even_split.h"

#include <fmt/format.h>

#include "search/error.h"
#include "search/partition/chain.h"
#include "search/partition/stages.h"

namespace ostinato {

Placement even_split(const Profile& profile, const PartitionOptions& options) {
  const int layers = static_cast<int>(profile.layers.size());
  const std::vector<int> devices = devices_of_stages(options);
  const int stages = static_cast<int>(devices.size());
  if (stages < 1 || stages > layers)
    throw InputError("", 0, fmt::format("{} layers cannot be split into {} stages", layers, stages));
  std::vector<ModelStage> split;
  for (int s = 0, layer = 0; s < stages; ++s) {
    ModelStage& stage = split.emplace_back();
    stage.devices = {devices[s]};
    for (int i = layers / stages + (s < layers % stages ? 1 : 0); i > 0; --i) stage.layers.push_back(layer++);
  }
  return place_stages(profile, options, split);
}

}  // namespace ostinato
