// SPDX-License-Identifier: Apache-2.0
#pragma once
// A backward in two halves: first the gradients of the stage's inputs, which the stage before waits for,
// later its weights' (Qi et al., Zero Bubble Pipeline Parallelism, 2023).
//
//   SplitBackward split(std::move(roots), inputs);
//   split.run_inputs(gradients);        // adds to the inputs' .grad
//   split.run_weights();                // adds to the weights' .grad
//
// profiler/autograd/backward_halves.h says how the graph is cut: between the halves only what the weights'
// gradients need stays. A stage without inputs, the first of a model, computes and frees in its first half
// what the plan expects there. A graph with re-entrant checkpointing runs whole in the first half.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/executor/backward.h"

namespace ostinato {

class SplitBackward {
 public:
  SplitBackward();
  /// `inputs` are the leaves of the stage's inputs; undefined ones and ones without a gradient are skipped.
  /// `may_split` false: all of it runs in the first half. `first` as BackwardHalves takes it. O(nodes of the
  /// graph).
  SplitBackward(BackwardRoots roots, const std::vector<at::Tensor>& inputs, bool may_split = true,
                std::uint64_t first = 0);
  SplitBackward(SplitBackward&&) noexcept;
  SplitBackward& operator=(SplitBackward&&) noexcept;
  ~SplitBackward();

  /// `gradients` as BackwardRoots::run() takes them. Without the GIL.
  void run_inputs(const std::vector<at::Tensor>& gradients);

  /// Afterwards nothing of the graph is left. Without the GIL.
  void run_weights();

  /// True where the graph could not be split and run_inputs() ran all of it.
  bool whole() const;

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

}  // namespace ostinato
