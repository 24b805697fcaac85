#include "tests/plugin/support/told_layer.h"

#include <c10/core/GradMode.h>

#include "tests/support/fake_memory.h"

namespace ostinato::testing {
namespace {

std::vector<const void*> memory_of_all(const std::vector<at::Tensor>& tensors) {
  std::vector<const void*> memory;
  for (const at::Tensor& tensor : tensors) memory.push_back(memory_of(tensor));
  return memory;
}

char letter(BackwardPart part) {
  return part == BackwardPart::whole ? 'B' : part == BackwardPart::inputs ? 'I' : 'W';
}

}  // namespace

void ToldLayer::tell(char kind, int micro_batch, const std::vector<const void*>& reads,
                     const std::vector<const void*>& writes) {
  const std::string name = std::to_string(index_) + kind + std::to_string(micro_batch);
  const Nanoseconds time = (kind == 'F' ? 1 : 2) * (10 + index_);
  fake_task(std::to_string(times_[name]++) + ":" + name, time, reads, writes);
}

std::vector<at::Tensor> ToldLayer::forward(int micro_batch, const std::vector<at::Tensor>& inputs) {
  const c10::AutoGradMode grad_mode(has_backward_);
  const std::vector<at::Tensor> outputs = Layer::forward(micro_batch, inputs);
  tell('F', micro_batch, memory_of_all(inputs), memory_of_all(outputs));
  if (!has_backward_) return outputs;
  inputs_[micro_batch] = inputs;
  gradients_of_[micro_batch].clear();
  if (outputs[0].requires_grad()) {
    outputs[0].register_hook([this, micro_batch](const at::Tensor& gradient) {
      gradients_of_[micro_batch].push_back(memory_of(gradient));
    });
  }
  return outputs;
}

void ToldLayer::after_backward(int micro_batch, BackwardPart part) {
  std::vector<const void*> reads = memory_of_all(inputs_[micro_batch]);
  std::vector<const void*> writes;
  if (part != BackwardPart::weights) {  // which start from what the other half made of the gradients
    reads.insert(reads.end(), gradients_of_[micro_batch].begin(), gradients_of_[micro_batch].end());
    for (const at::Tensor& input : inputs_[micro_batch]) writes.push_back(memory_of(input.grad()));
  }
  tell(letter(part), micro_batch, reads, writes);
  if (part != BackwardPart::inputs) inputs_.erase(micro_batch);
}

}  // namespace ostinato::testing
