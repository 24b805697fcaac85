// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/split_backward.h"

#include <optional>
#include <utility>

#include "plugin/executor/backward_roots.h"
#include "profiler/autograd/backward_halves.h"

namespace ostinato {

struct SplitBackward::Graph {
  std::unique_ptr<BackwardRoots::Edges> roots;  ///< until the first half has run
  std::vector<at::Tensor> leaves;               ///< inputs that want a gradient; as long
  std::optional<BackwardHalves> halves;         ///< none: may not split

  bool whole() const { return !halves || !halves->can_split(); }
};

SplitBackward::SplitBackward() = default;
SplitBackward::SplitBackward(SplitBackward&&) noexcept = default;
SplitBackward& SplitBackward::operator=(SplitBackward&&) noexcept = default;
SplitBackward::~SplitBackward() = default;

SplitBackward::SplitBackward(BackwardRoots roots, const std::vector<at::Tensor>& inputs, bool may_split,
                             std::uint64_t first)
    : graph_(std::make_unique<Graph>()) {
  graph_->roots = std::move(roots.edges_);
  if (!graph_->roots) graph_->roots = std::make_unique<BackwardRoots::Edges>();
  torch::autograd::edge_list input_edges;
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || !input.requires_grad()) continue;
    graph_->leaves.push_back(input);
    input_edges.push_back(torch::autograd::impl::gradient_edge(input));
  }
  if (may_split) graph_->halves.emplace(graph_->roots->roots, std::move(input_edges), first);
}

void SplitBackward::run_inputs(const std::vector<at::Tensor>& gradients) {
  Graph& g = *graph_;
  if (g.whole()) {
    g.roots->run(gradients);
  } else {
    const auto found = g.halves->run_inputs(g.roots->pick(gradients));
    for (std::size_t l = 0; l < g.leaves.size(); ++l) g.leaves[l].mutable_grad() = found[l];
  }
  if (g.halves) g.halves->cut();
  g.roots = nullptr;
  g.leaves.clear();
}

void SplitBackward::run_weights() {
  const std::unique_ptr<Graph> g = std::exchange(graph_, nullptr);
  if (!g->whole()) g->halves->run_weights();
}

bool SplitBackward::whole() const { return graph_ && graph_->whole(); }

}  // namespace ostinato
