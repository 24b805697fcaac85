// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/stage_run.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "plugin/executor/error.h"

namespace ostinato {

Message Message::from_peer(std::vector<Buffer> buffers) {
  Message message;
  for (const Buffer& buffer : buffers) {
    message.tensors.push_back(buffer.as_sent());
    message.wants_gradient.push_back(buffer.wants_gradient());
  }
  message.buffers = std::move(buffers);
  return message;
}

Message Message::from_here(std::vector<at::Tensor> tensors) {
  Message message;
  for (const at::Tensor& tensor : tensors)
    message.wants_gradient.push_back(tensor.defined() && tensor.requires_grad());
  message.tensors = std::move(tensors);
  return message;
}

Message Message::copy_of(const std::vector<Buffer>& buffers) {
  Message message;
  for (const Buffer& buffer : buffers) {
    const at::Tensor tensor = buffer.as_sent();
    message.tensors.push_back(tensor.defined() ? tensor.clone() : tensor);
    message.wants_gradient.push_back(buffer.wants_gradient());
  }
  return message;
}

StageRun::StageRun(const ProgramStage& stage, int micro_batches, StageModule& module)
    : stage_(stage), module_(module), kept_(micro_batches) {}

at::Tensor unshared(at::Tensor gradient) {
  const bool shared =
      gradient.use_count() > 1 || (gradient.has_storage() && gradient.storage().use_count() > 1);
  return shared ? gradient.clone() : gradient;
}

namespace {

bool is_differentiable(const at::Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

/// An alias that starts a new graph: gradients of a floating tensor end there. The module is given an alias
/// of this one in turn, so that what its operators save is never the leaf, which is made hollow().
at::Tensor leaf(const at::Tensor& tensor, bool wants_gradient) {
  if (!tensor.defined()) return {};
  at::Tensor alias = tensor.detach();
  if (wants_gradient && is_differentiable(alias)) alias.requires_grad_(true);
  return alias;
}

/// Torch does not count changes of inference tensors.
std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
}

/// Whoever handed it over may need it again. Autograd finds changes of what requires a gradient.
void expect_unchanged(const ProgramStage& stage, const at::Tensor& leaf, std::int64_t version) {
  if (!leaf.defined() || leaf.requires_grad() || !is_differentiable(leaf) || version_of(leaf) == version)
    return;
  throw ExecutionError("stage '" + stage.name +
                       "' changes its input in place, which another stage may read: clone it first");
}

/// Lets go of a leaf's data, and keeps its shape and strides, which its gradient will have. Aliases hold the
/// data on.
void hollow(at::Tensor& leaf) {
  if (leaf.defined() && leaf.is_inference()) leaf = at::Tensor();  // has no gradient
  if (!leaf.defined()) return;
  at::Tensor none = at::empty({0}, leaf.options());
  none.unsafeGetTensorImpl()->set_sizes_and_strides(leaf.sizes(), leaf.strides());
  leaf.set_data(none);
}

bool is_shared(const Message& message) {
  return std::any_of(message.buffers.begin(), message.buffers.end(),
                     [](const Buffer& buffer) { return buffer.is_shared(); });
}

/// A leaf's gradient, which autograd has laid out as the leaf, as the graph made it.
at::Tensor as_made(const at::Tensor& gradient, const std::optional<Order>& order) {
  if (!order || order_of(gradient) == *order) return gradient;
  return as_sent(laid_out(gradient, *order), *order);
}

at::Tensor seed_of(const ProgramStage& stage, const std::vector<at::Tensor>& outputs) {
  if (outputs.empty() || !outputs[0].defined() || outputs[0].numel() != 1) {
    throw ExecutionError(
        "stage '" + stage.name +
        "' feeds no other stage: its first output must be the scalar from which the backward starts");
  }
  return outputs[0].requires_grad() ? at::ones_like(outputs[0]) : at::Tensor();
}

}  // namespace

StageRun::KnownOrder StageRun::watch(const at::Tensor& leaf) {
  if (!leaf.defined() || !leaf.requires_grad()) return nullptr;
  auto order = std::make_shared<std::optional<Order>>();
  leaf.register_hook([order](const at::TensorBase& base) {
    const at::Tensor gradient(base);
    *order = gradient.is_non_overlapping_and_dense() ? std::optional(order_of(gradient)) : std::nullopt;
  });
  return order;
}

std::vector<at::Tensor> StageRun::forward(int micro_batch, std::vector<Message> messages) {
  Kept& kept = kept_[micro_batch];
  assert(!kept.live);
  std::vector<std::int64_t> versions;
  for (Message& message : messages) {
    for (std::size_t t = 0; t < message.tensors.size(); ++t) {
      kept.inputs.push_back(leaf(message.tensors[t], message.wants_gradient[t]));
      kept.orders.push_back(watch(kept.inputs.back()));
      versions.push_back(version_of(message.tensors[t]));
    }
    kept.counts.push_back(message.tensors.size());
    message.tensors.clear();
  }
  kept.first = at::sequence_number::peek();
  std::vector<at::Tensor> outputs = run_module(micro_batch, kept.inputs);
  if (!stage_.has_backward) {
    kept = {};
    return outputs;
  }
  for (std::size_t i = 0; i < versions.size(); ++i) expect_unchanged(stage_, kept.inputs[i], versions[i]);
  const bool last = stage_.outputs.empty();
  kept.seed = last ? seed_of(stage_, outputs) : at::Tensor();
  if (last) outputs.resize(1);
  kept.roots = BackwardRoots(outputs, module_.one_by_one());
  for (at::Tensor& input : kept.inputs) hollow(input);
  keep_shared(kept, std::move(messages));
  kept.live = true;
  return outputs;
}

std::vector<at::Tensor> StageRun::run_module(int micro_batch, const std::vector<at::Tensor>& leaves) {
  // Nothing keeps a leaf of an evaluation, in which an alias would not require a gradient.
  if (!stage_.has_backward && !at::GradMode::is_enabled()) return module_.forward(micro_batch, leaves);
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& leaf : leaves) inputs.push_back(leaf.defined() ? at::alias(leaf) : at::Tensor());
  return module_.forward(micro_batch, inputs);
}

void StageRun::keep_shared(Kept& kept, std::vector<Message> messages) {
  for (Message& message : messages) {
    if (is_shared(message)) kept.messages.push_back(std::move(message));
  }
}

std::vector<at::Tensor> StageRun::roots_gradients(Kept& kept, std::vector<Message>& gradients) {
  if (gradients.empty()) return {std::move(kept.seed)};
  std::vector<at::Tensor> sum = std::move(gradients[0].tensors);
  for (std::size_t g = 1; g < gradients.size(); ++g) {
    for (std::size_t t = 0; t < sum.size(); ++t) {
      const at::Tensor more = std::move(gradients[g].tensors[t]);
      if (more.defined()) sum[t] = sum[t].defined() ? at::add(sum[t], more) : more;
    }
  }
  return sum;
}

std::vector<std::vector<at::Tensor>> StageRun::take_input_gradients(Kept& kept) {
  std::vector<std::vector<at::Tensor>> result;
  std::size_t next = 0;
  for (const std::size_t count : kept.counts) {
    auto& of_message = result.emplace_back();
    for (std::size_t t = 0; t < count; ++t, ++next) {
      at::Tensor gradient;
      if (kept.inputs[next].defined()) gradient = std::exchange(kept.inputs[next].mutable_grad(), {});
      of_message.push_back(gradient.defined() ? as_made(unshared(std::move(gradient)), *kept.orders[next])
                                              : gradient);
    }
  }
  kept.inputs.clear();
  return result;
}

std::vector<std::vector<at::Tensor>> StageRun::backward(int micro_batch, std::vector<Message> gradients) {
  // Destroyed in this order: roots, inputs, and then the buffers, which go back to the pool unshared.
  Kept kept = std::exchange(kept_[micro_batch], {});
  assert(kept.live);
  std::vector<at::Tensor> received = roots_gradients(kept, gradients);
  module_.before_backward(micro_batch, BackwardPart::whole);
  kept.roots.run(received);
  module_.after_backward(micro_batch, BackwardPart::whole);
  return take_input_gradients(kept);
}

std::vector<std::vector<at::Tensor>> StageRun::backward_input(int micro_batch,
                                                              std::vector<Message> gradients) {
  Kept& kept = kept_[micro_batch];
  assert(kept.live);
  {
    const std::vector<at::Tensor> received = roots_gradients(kept, gradients);
    kept.split = SplitBackward(std::move(kept.roots), kept.inputs, module_.may_split(), kept.first);
    const BackwardPart part = kept.split.whole() ? BackwardPart::whole : BackwardPart::inputs;
    ran_whole_ = ran_whole_ || kept.split.whole();
    module_.before_backward(micro_batch, part);
    kept.split.run_inputs(received);
    module_.after_backward(micro_batch, part);
  }
  // A gradient that the second half starts from may be the received buffer itself.
  keep_shared(kept, std::move(gradients));
  return take_input_gradients(kept);
}

void StageRun::backward_weight(int micro_batch) {
  Kept kept = std::exchange(kept_[micro_batch], {});
  assert(kept.live);
  if (kept.split.whole()) return;
  module_.before_backward(micro_batch, BackwardPart::weights);
  kept.split.run_weights();
  module_.after_backward(micro_batch, BackwardPart::weights);
}

}  // namespace ostinato
