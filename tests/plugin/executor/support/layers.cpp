// SPDX-License-Identifier: Apache-2.0
#include "tests/plugin/executor/support/layers.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

namespace ostinato::testing {
namespace {

at::Tensor draw(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions());
}

}  // namespace

Layer::Layer(const ProgramStage& stage, int index, at::Device device)
    : weight((draw({kWidth, kWidth}, 100 + index) * 0.3).to(device).requires_grad_(true)),
      bias(draw({kWidth}, 200 + index).to(device).requires_grad_(true)),
      first_(stage.inputs.empty()),
      last_(stage.outputs.empty()),
      device_(device) {}

std::vector<at::Tensor> Layer::forward(int micro_batch, const std::vector<at::Tensor>& inputs) {
  at::Tensor x = first_ ? draw({kBatch, kWidth}, 300 + micro_batch).to(device_) : inputs[0];
  for (std::size_t i = 1; i < inputs.size(); ++i) x = x + inputs[i];
  at::Tensor y = at::tanh(at::linear(x, weight, bias));
  if (last_) {
    y = (y * y).mean();
    losses.push_back(y.item<double>());
  }
  outputs_.emplace_back(y.getIntrusivePtr());
  most_alive = std::max(most_alive, static_cast<int>(std::count_if(outputs_.begin(), outputs_.end(),
                                                                   [](auto& o) { return !o.expired(); })));
  return {y};
}

std::map<int, Layer> make_layers(const Program& program) {
  std::map<int, Layer> layers;
  for (int s = 0; s < static_cast<int>(program.stages.size()); ++s)
    layers.emplace(s, Layer(program.stages[s], s));
  return layers;
}

void run_reference(const Program& program, std::map<int, Layer>& layers) {
  for (int m = 0; m < program.micro_batches; ++m) {
    std::map<int, at::Tensor> outputs;
    for (int s = 0; s < static_cast<int>(program.stages.size()); ++s) {
      std::vector<at::Tensor> inputs;
      for (const int from : program.stages[s].inputs) inputs.push_back(outputs.at(from));
      outputs[s] = layers.at(s).forward(m, inputs)[0];
    }
    for (auto& [s, output] : outputs) {
      if (program.stages[s].outputs.empty()) output.backward();
    }
  }
}

}  // namespace ostinato::testing
