// SPDX-License-Identifier: Apache-2.0
#include "profiler/saved/step_run.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "profiler/autograd/backward_halves.h"
#include "profiler/memory/counting_allocator.h"
#include "profiler/nvtx/nvtx_range.h"
#include "profiler/saved/ivalues.h"
#include "search/files/error.h"

namespace ostinato {
namespace {

Nanoseconds now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::vector<at::Tensor> ones_like(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> ones;
  for (const at::Tensor& tensor : tensors) ones.push_back(at::ones_like(tensor));
  return ones;
}

torch::autograd::edge_list edges_of(const std::vector<at::Tensor>& tensors) {
  torch::autograd::edge_list edges;
  for (const at::Tensor& tensor : tensors) edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  return edges;
}

bool learns(const SavedStep& step) {
  return std::any_of(step.parameters.begin(), step.parameters.end(),
                     [](const at::Tensor& parameter) { return parameter.requires_grad(); });
}

std::vector<at::Tensor> with_gradient(const std::vector<c10::IValue>& outputs) {
  std::vector<at::Tensor> tensors = tensors_of(outputs);
  std::erase_if(tensors, [](const at::Tensor& tensor) { return !tensor.requires_grad(); });
  return tensors;
}

/// Gives a gradient as a step behind would (footprint.py has the same in Python).
struct Arrival : torch::autograd::Function<Arrival> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& output) {
    context->saved_data["shape"] = output.sizes();
    context->saved_data["type"] = output.scalar_type();
    return output.view_as(output);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list&) {
    return {at::ones(context->saved_data["shape"].toIntVector(), context->saved_data["type"].toScalarType())};
  }
};

}  // namespace

StepRun::StepRun(const SavedStep& step) : step_(step) {
  const auto copy = [&](const at::Tensor& tensor) {
    if (is_state(step, tensor)) return tensor;
    const at::Tensor leaf = tensor.detach().clone();
    if (!step.takes_gradient || !tensor.is_floating_point()) return leaf;
    leaves_.push_back(leaf.requires_grad_(true));
    return leaf.clone();  // a leaf refuses to be worked on in place
  };
  for (const c10::IValue& value : step.inputs) inputs_.push_back(map_tensors(value, copy));
  for (const at::Tensor& parameter : step.parameters) {
    if (parameter.requires_grad() && !parameter.grad().defined())
      parameter.mutable_grad() = at::zeros_like(parameter);
  }
}

StepCost StepRun::measured(OperatorRecorder* recorder, int layer, const char* phase,
                           const std::function<void()>& call) {
  const Bytes before = live_bytes();
  reset_peak();
  if (recorder) recorder->begin_pass(layer, phase);
  const NvtxRange range((step_.name + " " + phase).c_str());
  const Nanoseconds start = now();
  try {
    call();
  } catch (const std::exception& error) {
    if (recorder) recorder->end_pass();
    const std::string text = error.what();
    throw InputError(
        "", 0, "step " + step_.name + " raised in its " + phase + ": " + text.substr(0, text.find('\n')));
  }
  const Nanoseconds time = now() - start;
  if (recorder) recorder->end_pass();
  return {time, live_bytes() - before, peak_bytes() - before};
}

StepCost StepRun::forward(OperatorRecorder* recorder, int layer) {
  return measured(recorder, layer, "forward", [&] { outputs_ = step_.run(inputs_); });
}

StepCost StepRun::backward(OperatorRecorder* recorder, int layer) {
  const std::vector<at::Tensor> roots = with_gradient(outputs_), gradients = ones_like(roots);
  return measured(recorder, layer, "backward", [&] {
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
  });
}

Bytes StepRun::backward_peak() {
  torch::autograd::edge_list ends;
  std::vector<at::Tensor> seeds;
  for (const at::Tensor& root : with_gradient(std::exchange(outputs_, {}))) {
    ends.push_back(torch::autograd::impl::gradient_edge(Arrival::apply(root)));
    seeds.push_back(at::zeros({}, root.options().requires_grad(false)).expand(root.sizes()));
  }
  if (ends.empty()) return 0;
  return measured(nullptr, 0, "backward",
                  [&] {
                    torch::autograd::Engine::get_default_engine().execute(ends, seeds, /*keep_graph=*/false,
                                                                          /*create_graph=*/false,
                                                                          /*accumulate_grad=*/true);
                  })
      .peak;
}

HalfTimes StepRun::halves() {
  const std::vector<at::Tensor> roots = with_gradient(outputs_);
  if (leaves_.empty() || roots.empty()) return {.inputs = 0, .parameters = backward(nullptr, 0).time};
  if (!learns(step_)) return {.inputs = backward(nullptr, 0).time, .parameters = 0};
  const std::vector<at::Tensor> gradients = ones_like(roots);
  BackwardHalves halves(edges_of(roots), edges_of(leaves_));
  HalfTimes times;
  times.inputs = measured(nullptr, 0, "backward_input", [&] { halves.run_inputs(gradients); }).time;
  halves.cut();
  times.parameters = measured(nullptr, 0, "backward_weight", [&] { halves.run_weights(); }).time;
  return times;
}

namespace {

const void* memory_of(const at::Tensor& tensor) { return tensor.storage().data(); }

/// Empties the list. By tensor: whether its memory stayed when the last one that shows it was let go.
std::vector<bool> still_held(std::vector<at::Tensor>& tensors) {
  std::vector<const void*> places;
  for (const at::Tensor& tensor : tensors) places.push_back(memory_of(tensor));
  std::vector<bool> stayed(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Bytes size = static_cast<Bytes>(tensors[i].storage().nbytes()), before = live_bytes();
    tensors[i].reset();
    const bool held = before - live_bytes() < size;
    for (std::size_t j = 0; j <= i; ++j) {
      if (places[j] == places[i]) stayed[j] = held;
    }
  }
  return stayed;
}

int index_of(const std::vector<const void*>& places, const void* place) {
  const auto found = std::find(places.begin(), places.end(), place);
  return found == places.end() ? -1 : static_cast<int>(found - places.begin());
}

}  // namespace

HeldMemory held_memory(const SavedStep& step) {
  StepRun run(step);
  run.forward(nullptr, 0);
  std::vector<at::Tensor> given = tensors_of(run.take_outputs()), taken = tensors_of(run.take_inputs());
  std::vector<torch::autograd::Edge> graph;  // keeps what the backward needs, and not the outputs
  HeldMemory held;
  std::vector<const void*> sources, places;
  for (const at::Tensor& tensor : taken) sources.push_back(memory_of(tensor));
  for (const at::Tensor& tensor : given) {
    places.push_back(memory_of(tensor));
    held.alias.push_back(index_of(sources, places.back()));
    held.first.push_back(index_of(places, places.back()));
    held.sizes.push_back(static_cast<Bytes>(tensor.storage().nbytes()));
    if (tensor.requires_grad()) graph.push_back(torch::autograd::impl::gradient_edge(tensor));
  }
  held.outputs = still_held(given);
  held.inputs = still_held(taken);
  for (std::size_t i = 0; i < held.alias.size(); ++i) {  // it was still held as that input, whose turn tells
    if (held.alias[i] >= 0) held.outputs[i] = held.inputs[held.alias[i]];
  }
  return held;
}

namespace {

/// Who reads which output, and until when each is in memory.
class Readers {
 public:
  Readers(const std::vector<SavedStep>& steps, const std::vector<const HeldMemory*>& held)
      : held_(held), readers_(steps.size()) {
    for (std::size_t step = 0; step < steps.size(); ++step) readers_[step].resize(held[step]->outputs.size());
    for (std::size_t step = 0; step < steps.size(); ++step) {
      for (std::size_t input = 0; input < steps[step].sources.size(); ++input) {
        const TensorSource& source = steps[step].sources[input];
        if (source.step < 0) continue;
        const std::size_t giver = source.step;
        const auto first = static_cast<std::size_t>(held[giver]->first[source.tensor]);
        readers_[giver][first].push_back({step, input});
      }
    }
  }

  Bytes freed(std::size_t step) const {
    Bytes bytes = 0;
    for (std::size_t output = 0; output < held_[step]->outputs.size(); ++output) {
      const bool own =
          held_[step]->first[output] == static_cast<int>(output) && held_[step]->alias[output] < 0;
      if (own && !needed(step, output)) bytes += held_[step]->sizes[output];
    }
    return bytes;
  }

 private:
  struct Reader {
    std::size_t step, input;
  };

  /// Those that nobody reads are the program's.
  bool needed(std::size_t step, std::size_t output) const {
    const std::vector<Reader>& readers = readers_[step][output];
    return held_[step]->outputs[output] || readers.empty() ||
           std::any_of(readers.begin(), readers.end(),
                       [&](const Reader& reader) { return needed_by(reader); });
  }

  /// For its own backward, or to be handed on to one that needs it.
  bool needed_by(const Reader& reader) const {
    const HeldMemory& held = *held_[reader.step];
    if (held.inputs[reader.input]) return true;
    for (std::size_t output = 0; output < held.alias.size(); ++output) {
      const std::size_t first = held.first[output];
      if (held.alias[output] == static_cast<int>(reader.input) && needed(reader.step, first)) return true;
    }
    return false;
  }

  const std::vector<const HeldMemory*>& held_;
  std::vector<std::vector<std::vector<Reader>>> readers_;  ///< by step and output
};

}  // namespace

std::vector<Bytes> freed_outputs(const std::vector<SavedStep>& steps,
                                 const std::vector<const HeldMemory*>& held) {
  const Readers readers(steps, held);
  std::vector<Bytes> freed;
  for (std::size_t step = 0; step < steps.size(); ++step) freed.push_back(readers.freed(step));
  return freed;
}

}  // namespace ostinato
