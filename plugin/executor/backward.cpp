#include "plugin/executor/backward.h"

#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace ostinato {

using torch::autograd::Edge;

struct BackwardRoots::Edges {
  torch::autograd::edge_list roots;
  std::vector<std::size_t> output;  ///< index of the output that a root belongs to
};

BackwardRoots::BackwardRoots() = default;
BackwardRoots::BackwardRoots(BackwardRoots&&) noexcept = default;
BackwardRoots& BackwardRoots::operator=(BackwardRoots&&) noexcept = default;
BackwardRoots::~BackwardRoots() = default;

BackwardRoots::BackwardRoots(const std::vector<at::Tensor>& outputs) : edges_(std::make_unique<Edges>()) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad()) continue;
    edges_->roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
    edges_->output.push_back(i);
  }
}

bool BackwardRoots::empty() const { return !edges_ || edges_->roots.empty(); }

void BackwardRoots::run(const std::vector<at::Tensor>& gradients) {
  const std::unique_ptr<Edges> edges = std::exchange(edges_, nullptr);
  if (!edges || edges->roots.empty()) return;
  torch::autograd::variable_list inputs;
  for (std::size_t r = 0; r < edges->roots.size(); ++r) {
    const Edge& root = edges->roots[r];
    const at::Tensor& gradient = gradients[edges->output[r]];
    inputs.push_back(gradient.defined() ? gradient
                                        : root.function->input_metadata(root.input_nr).zeros_like());
  }
  torch::autograd::Engine::get_default_engine().execute(edges->roots, inputs, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace ostinato
