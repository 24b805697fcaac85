// SPDX-License-Identifier: Apache-2.0
#pragma once
// The model side of the executor: what a stage computes. The core knows no Python; bindings implement this
// with the GIL taken inside, and tests implement it with plain tensors.

#include <ATen/core/Tensor.h>

#include <vector>

namespace ostinato {

/// What one run of the autograd engine computes: all gradients, or one half of them. A backward that could
/// not be split runs whole in its first half, and there is no second.
enum class BackwardPart { whole, inputs, weights };

class StageModule {
 public:
  virtual ~StageModule() = default;

  /// Runs the stage on one micro-batch. `inputs` are the outputs of the stages that feed it, one after the
  /// other; the autograd graph starts at them, and they require a gradient where the outputs did: a stage
  /// behind stages that learn nothing has no backward through its inputs.
  /// The executor keeps none of them: what the graph does not save is gone when the caller lets go of it. An
  /// undefined tensor stands for None. Empty for a stage without inputs. Where the stage feeds no other, the
  /// first output is the scalar that its backward starts from, already scaled.
  virtual std::vector<at::Tensor> forward(int micro_batch, const std::vector<at::Tensor>& inputs) = 0;

  /// False where a backward that the plan splits must run whole, in its first half.
  virtual bool may_split() const { return true; }

  /// Whether a whole backward starts from one output after the other (BackwardRoots).
  virtual bool one_by_one() const { return false; }

  /// Between the forward and the backward of a micro-batch: what the graph keeps goes to the host, and comes
  /// back, on the thread's current stream. Only where the program says so (ProgramStage::offload).
  virtual void offload(int /*micro_batch*/) {}
  virtual void load(int /*micro_batch*/) {}

  /// Around each backward of one micro-batch, on the same thread. Gradients of weights grow in every part
  /// but BackwardPart::inputs.
  virtual void before_backward(int /*micro_batch*/, BackwardPart /*part*/) {}
  virtual void after_backward(int /*micro_batch*/, BackwardPart /*part*/) {}
};

}  // namespace ostinato
