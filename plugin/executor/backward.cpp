#include "plugin/executor/backward.h"

#include <utility>

#include "plugin/executor/backward_roots.h"

namespace ostinato {

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

bool BackwardRoots::empty() const { return !edges_ || edges_->roots.empty(); }

void BackwardRoots::run(const std::vector<at::Tensor>& gradients) {
  const std::unique_ptr<Edges> edges = std::exchange(edges_, nullptr);
  if (!edges || edges->roots.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(edges->roots, edges->pick(gradients),
                                                        /*keep_graph=*/false, /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

}  // namespace ostinato
