#pragma once
// A Layer on the fake device, which is told of its work: "2:1F0" is the forward of stage 1 for micro-batch 0
// in the third step, and so on with B, I and W. Forwards take 10 + stage ns and backwards twice that, as the
// blocks of tests/support/plans.h.

#include <string>

#include "tests/plugin/support/layers.h"

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
  std::map<std::string, int> times_;                      ///< that a piece of work was done
  std::map<int, std::vector<at::Tensor>> inputs_;         ///< per micro-batch, until its backward
  std::map<int, std::vector<const void*>> gradients_of_;  ///< its outputs', per micro-batch
};

}  // namespace ostinato::testing
