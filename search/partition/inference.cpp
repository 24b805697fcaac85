// SPDX-License-Identifier: Apache-2.0
#include "search/partition/inference.h"

namespace ostinato {

LayerCost forward_only(LayerCost layer) {
  layer.backward = layer.backward_input = layer.backward_weight = {};
  layer.forward_workspace =
      layer.inference_workspace.value_or(layer.kept + layer.forward_workspace) + layer.input_bytes;
  layer.backward_workspace = layer.kept = layer.gradients = layer.optimizer_state = 0;
  layer.recompute = layer.step_time = 0;
  layer.step_together = layer.step_alone = layer.waiting = layer.weight_workspace = layer.labels =
      layer.sent = 0;
  layer.passed.clear();
  layer.released.clear();
  return layer;
}

}  // namespace ostinato
