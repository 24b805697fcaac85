#include "search/partition/even_split.h"

#include <fmt/format.h>

#include <vector>

#include "search/error.h"
#include "search/partition/chain_placement.h"

namespace ostinato {

Placement even_split(const Profile& profile, const PartitionOptions& options) {
  const int layers = static_cast<int>(profile.layers.size());
  const int stages = static_cast<int>(chain::devices_of_stages(options).size());
  if (stages < 1 || stages > layers) {
    throw InputError("", 0, fmt::format("{} layers cannot be split into {} stages", layers, stages));
  }
  std::vector<int> ends;
  for (int s = 0; s < stages; ++s) {
    const int length = layers / stages + (s < layers % stages ? 1 : 0);
    ends.push_back((s == 0 ? 0 : ends.back()) + length);
  }
  return chain::build_placement(profile, options, ends);
}

}  // namespace ostinato
