#include "profiler/saved/step_halves.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace ostinato {

using torch::autograd::Edge;
using torch::autograd::Engine;
using torch::autograd::Node;

StepHalves::StepHalves(const std::vector<at::Tensor>& outputs, std::vector<at::Tensor> gradients,
                       const std::vector<at::Tensor>& leaves)
    : gradients_(std::move(gradients)) {
  for (const at::Tensor& output : outputs) roots_.push_back(torch::autograd::impl::gradient_edge(output));
  for (const at::Tensor& leaf : leaves) inputs_.push_back(torch::autograd::impl::gradient_edge(leaf));
  explore();
  find_starts();
}

/// Depth first from the roots, with a stack of its own: a graph is as deep as the step.
void StepHalves::explore() {
  for (const Edge& input : inputs_) on_input_path_[input.function.get()] = true;
  std::vector<std::pair<Node*, std::size_t>> stack;  // node, next edge to look at
  const auto enter = [&](Node* node) {
    if (on_input_path_.emplace(node, false).second) stack.emplace_back(node, 0);
  };
  for (const Edge& root : roots_) {
    enter(root.function.get());
    while (!stack.empty()) {
      auto& [node, at] = stack.back();
      if (at < node->num_outputs()) {
        const Edge& next = node->next_edge(at++);
        if (next.is_valid()) enter(next.function.get());
        continue;
      }
      on_input_path_[node] = std::any_of(
          node->next_edges().begin(), node->next_edges().end(),
          [&](const Edge& next) { return next.is_valid() && on_input_path_.at(next.function.get()); });
      order_.push_back(node);
      stack.pop_back();
    }
  }
}

void StepHalves::find_starts() {
  for (Node* node : order_) {
    if (!on_input_path_.at(node)) continue;
    const bool leaves_path = std::any_of(
        node->next_edges().begin(), node->next_edges().end(),
        [&](const Edge& next) { return next.is_valid() && !on_input_path_.at(next.function.get()); });
    if (!leaves_path) continue;
    for (std::uint32_t i = 0; i < node->num_inputs(); ++i) starts_.emplace_back(node->getptr(), i);
  }
}

void StepHalves::run_inputs() {
  std::vector<Edge> now, later, wanted = inputs_;
  std::vector<at::Tensor> given, given_later;
  for (std::size_t i = 0; i < roots_.size(); ++i) {
    const bool on_path = on_input_path_.at(roots_[i].function.get());
    (on_path ? now : later).push_back(roots_[i]);
    (on_path ? given : given_later).push_back(gradients_[i]);
  }
  wanted.insert(wanted.end(), starts_.begin(), starts_.end());
  std::vector<at::Tensor> results(wanted.size());
  if (!now.empty()) {
    results = Engine::get_default_engine().execute(now, given, /*keep_graph=*/true, /*create_graph=*/false,
                                                   /*accumulate_grad=*/false, wanted);
  }
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    const at::Tensor& gradient = results[inputs_.size() + i];
    if (!gradient.defined()) continue;  // an output of that operator that nobody used
    later.push_back(starts_[i]);
    given_later.push_back(gradient);
  }
  starts_ = std::move(later);
  arrived_ = std::move(given_later);
}

void StepHalves::cut() {
  for (Node* node : order_) {
    if (!on_input_path_.at(node)) continue;
    for (Edge& next : node->next_edges()) {
      if (next.is_valid() && on_input_path_.at(next.function.get())) {
        cut_off_.push_back(std::exchange(next, Edge()));
      }
    }
  }
}

void StepHalves::run_parameters() {
  if (starts_.empty()) return;
  Engine::get_default_engine().execute(starts_, arrived_, /*keep_graph=*/false, /*create_graph=*/false,
                                       /*accumulate_grad=*/true);
}

}  // namespace ostinato
