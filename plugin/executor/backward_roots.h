// SPDX-License-Identifier: Apache-2.0
#pragma once
// Inside of BackwardRoots, for the files that call the autograd engine. Heavy: it pulls in torch's engine.

#include <torch/csrc/autograd/engine.h>

#include <vector>

#include "plugin/executor/backward.h"

namespace ostinato {

struct BackwardRoots::Edges {
  torch::autograd::edge_list roots;
  std::vector<std::size_t> output;  ///< index of the output that a root belongs to
  bool one_by_one = false;          ///< each root gets a separate engine run

  /// One gradient per root, zeros where none came.
  torch::autograd::variable_list pick(const std::vector<at::Tensor>& gradients) const;

  /// Whole backward: adds to the leaves' .grad.
  void run(const std::vector<at::Tensor>& gradients) const;
};

}  // namespace ostinato
