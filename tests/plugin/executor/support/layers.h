// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small stages of plain tensors, and the same computation on one thread to compare with.

#include <ATen/ATen.h>

#include <map>
#include <vector>

#include "plugin/executor/stage_module.h"
#include "plugin/lowering/program.h"

namespace ostinato::testing {

inline constexpr int kWidth = 8;
inline constexpr int kBatch = 4;

/// tanh(w * sum of the inputs + b); a stage without inputs draws its batch from the micro-batch number, a
/// stage that feeds no other returns the mean of squares.
class Layer : public StageModule {
 public:
  Layer(const ProgramStage& stage, int index, at::Device device = at::kCPU);
  std::vector<at::Tensor> forward(int micro_batch, const std::vector<at::Tensor>& inputs) override;

  at::Tensor weight, bias;
  std::vector<double> losses;
  int most_alive = 0;  ///< outputs of this stage that were alive at once, looked at in each forward

 private:
  bool first_, last_;
  at::Device device_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> outputs_;
};

/// One Layer a stage, equal for equal arguments.
std::map<int, Layer> make_layers(const Program& program);

/// Runs all micro-batches one after the other through all stages in one graph each, and adds up their
/// gradients.
void run_reference(const Program& program, std::map<int, Layer>& layers);

}  // namespace ostinato::testing
