// SPDX-License-Identifier: Apache-2.0
#pragma once
// A Layer on the fake device, which is told of its work: "2:1F0" is the forward of stage 1 for micro-batch 0
// in the third step, and so on with B, I and W. Forwards take 10 + stage ns and backwards twice that, as the
// blocks of tests/support/plans.h.

#include <string>

#include "tests/plugin/executor/support/layers.h"

namespace ostinato::testing {

class ToldLayer : public Layer {
 public:
  ToldLayer(const ProgramStage& stage, int index, at::Device device)
      : Layer(stage, index, device), index_(index), has_backward_(stage.has_backward) {}

  std::vector<at::Tensor> forward(int micro_batch, const std::vector<at::Tensor>& inputs) override;
  void after_backward(int micro_batch, BackwardPart part) override;

 private:
  void tell(char kind, int micro_batch, const std::vector<const void*>& reads,
            const std::vector<const void*>& writes);

  int index_;
  bool has_backward_;
  std::map<std::string, int> times_;  ///< that a piece of work was done
  /// Per micro-batch; where things are, and not the tensors: what nobody else keeps is given back.
  std::map<int, std::vector<const void*>> saved_;     ///< read by its backward, both halves
  std::map<int, std::vector<const void*>> received_;  ///< gradients of its outputs
  std::map<int, std::vector<const void*>> made_;      ///< gradients of its inputs
};

}  // namespace ostinato::testing
