// SPDX-License-Identifier: Apache-2.0
#include "tests/plugin/executor/support/told_layer.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include "tests/support/fake_memory.h"

namespace ostinato::testing {
namespace {

std::vector<const void*> memory_of_all(const std::vector<at::Tensor>& tensors) {
  std::vector<const void*> memory;
  for (const at::Tensor& tensor : tensors) memory.push_back(memory_of(tensor));
  return memory;
}

/// Where the gradient of a tensor is, once backward has come to it.
void note_gradient(const at::Tensor& tensor, std::vector<const void*>& where) {
  tensor.register_hook([&where](const at::Tensor& gradient) { where.push_back(memory_of(gradient)); });
}

char letter(BackwardPart part) {
  return part == BackwardPart::whole ? 'B' : part == BackwardPart::inputs ? 'I' : 'W';
}

}  // namespace

void ToldLayer::tell(char kind, int micro_batch, const std::vector<const void*>& reads,
                     const std::vector<const void*>& writes) {
  const c10::DeviceGuard here(weight.device());  // kernels run where their tensors are
  const std::string name = std::to_string(index_) + kind + std::to_string(micro_batch);
  const Nanoseconds time = (kind == 'F' ? 1 : 2) * (10 + index_);
  fake_task(std::to_string(times_[name]++) + ":" + name, time, reads, writes);
}

std::vector<at::Tensor> ToldLayer::forward(int micro_batch, const std::vector<at::Tensor>& inputs) {
  const c10::AutoGradMode grad_mode(has_backward_);
  const std::vector<at::Tensor> outputs = Layer::forward(micro_batch, inputs);
  tell('F', micro_batch, memory_of_all(inputs), memory_of_all(outputs));
  if (!has_backward_) return outputs;
  saved_[micro_batch].clear();  // of several inputs the sum is
  if (inputs.size() == 1) saved_[micro_batch] = memory_of_all(inputs);
  received_[micro_batch].clear();
  note_gradient(outputs[0], received_[micro_batch]);
  made_[micro_batch].clear();
  for (const at::Tensor& input : inputs) note_gradient(input, made_[micro_batch]);
  return outputs;
}

void ToldLayer::after_backward(int micro_batch, BackwardPart part) {
  std::vector<const void*> reads = saved_[micro_batch];
  if (part == BackwardPart::weights) return tell(letter(part), micro_batch, reads, {});
  const std::vector<const void*>& received = received_[micro_batch];
  reads.insert(reads.end(), received.begin(), received.end());
  tell(letter(part), micro_batch, reads, made_[micro_batch]);
}

}  // namespace ostinato::testing
