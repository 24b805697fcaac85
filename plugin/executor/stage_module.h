#pragma once
// The model side of the executor: what a stage computes. The core knows no Python; bindings implement this
// with the GIL taken inside, and tests implement it with plain tensors.

#include <ATen/core/Tensor.h>

#include <vector>

namespace ostinato {

class StageModule {
 public:
  virtual ~StageModule() = default;

  /// Runs the stage on one micro-batch. `inputs` are the outputs of the stages that feed it, one after the
  /// other; they are leaves of the autograd graph, and require a gradient where they are of floating type. An
  /// undefined tensor stands for None. Empty for a stage without inputs. Where the stage feeds no other, the
  /// first output is the scalar that its backward starts from, already scaled.
  virtual std::vector<at::Tensor> forward(int micro_batch, const std::vector<at::Tensor>& inputs) = 0;

  /// Around the autograd run of one micro-batch, on the same thread.
  virtual void before_backward(int /*micro_batch*/) {}
  virtual void after_backward(int /*micro_batch*/) {}
};

}  // namespace ostinato
