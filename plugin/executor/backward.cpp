// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/backward.h"

#include <utility>

#include "plugin/executor/backward_roots.h"

namespace ostinato {

BackwardRoots::BackwardRoots() = default;
BackwardRoots::BackwardRoots(BackwardRoots&&) noexcept = default;
BackwardRoots& BackwardRoots::operator=(BackwardRoots&&) noexcept = default;
BackwardRoots::~BackwardRoots() = default;

BackwardRoots::BackwardRoots(const std::vector<at::Tensor>& outputs, bool one_by_one)
    : edges_(std::make_unique<Edges>()) {
  edges_->one_by_one = one_by_one;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad()) continue;
    edges_->roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
    edges_->output.push_back(i);
  }
}

torch::autograd::variable_list BackwardRoots::Edges::pick(const std::vector<at::Tensor>& gradients) const {
  torch::autograd::variable_list picked;
  for (std::size_t r = 0; r < roots.size(); ++r) {
    const at::Tensor& gradient = gradients[output[r]];
    const torch::autograd::Edge& root = roots[r];
    picked.push_back(gradient.defined() ? gradient
                                        : root.function->input_metadata(root.input_nr).zeros_like());
  }
  return picked;
}

void BackwardRoots::Edges::run(const std::vector<at::Tensor>& gradients) const {
  const torch::autograd::variable_list given = pick(gradients);
  const auto execute = [](const torch::autograd::edge_list& from, const torch::autograd::variable_list& with,
                          bool keep_graph) {
    torch::autograd::Engine::get_default_engine().execute(from, with, keep_graph, /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
  };
  if (!one_by_one) {
    if (!roots.empty()) execute(roots, given, /*keep_graph=*/false);
    return;
  }
  for (std::size_t r = 0; r < roots.size(); ++r) execute({roots[r]}, {given[r]}, r + 1 < roots.size());
}

void BackwardRoots::run(const std::vector<at::Tensor>& gradients) {
  const std::unique_ptr<Edges> edges = std::exchange(edges_, nullptr);
  if (edges) edges->run(gradients);
}

}  // namespace ostinato
