// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which layer reads from which. Layers stand in model order, so every input is an earlier layer.

#include <vector>

#include "search/profile/profile.h"

namespace ostinato {

class LayerGraph {
 public:
  /// A layer without `after` reads the layer before it.
  explicit LayerGraph(const Profile& profile);

  int layers() const { return static_cast<int>(inputs_.size()); }
  const std::vector<LayerInput>& inputs(int layer) const { return inputs_[layer]; }
  const std::vector<int>& readers(int layer) const { return readers_[layer]; }

  /// Every layer reads the one before it and no other: there is nothing to gain from branches.
  bool is_chain() const;

  /// Bytes that a cut before `layer` separates from their readers: each output once. O(edges).
  Bytes bytes_across(int layer) const;

 private:
  std::vector<std::vector<LayerInput>> inputs_;
  std::vector<std::vector<int>> readers_;
};

}  // namespace ostinato
