// SPDX-License-Identifier: Apache-2.0
#include "search/profile/layer_graph.h"

#include <algorithm>

namespace ostinato {

LayerGraph::LayerGraph(const Profile& profile) : readers_(profile.layers.size()) {
  for (std::size_t l = 0; l < profile.layers.size(); ++l) {
    const int before = static_cast<int>(l) - 1;
    std::vector<LayerInput> inputs;
    if (profile.layers[l].after) {
      inputs = *profile.layers[l].after;
    } else if (before >= 0) {
      inputs.push_back({before, profile.layers[before].output_bytes});
    }
    for (const LayerInput& input : inputs) readers_[input.layer].push_back(static_cast<int>(l));
    inputs_.push_back(std::move(inputs));
  }
}

bool LayerGraph::is_chain() const {
  for (int l = 0; l < layers(); ++l) {
    const bool usual = l == 0 ? inputs_[l].empty() : inputs_[l].size() == 1 && inputs_[l][0].layer == l - 1;
    if (!usual) return false;
  }
  return true;
}

Bytes LayerGraph::bytes_across(int layer) const {
  std::vector<Bytes> carried(layer, 0);
  for (int l = layer; l < layers(); ++l) {
    for (const LayerInput& input : inputs_[l]) {
      if (input.layer < layer) carried[input.layer] = std::max(carried[input.layer], input.bytes);
    }
  }
  Bytes total = 0;
  for (const Bytes bytes : carried) total += bytes;
  return total;
}

}  // namespace ostinato
