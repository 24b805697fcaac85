#include "plugin/executor/split_backward.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "plugin/executor/backward_roots.h"

namespace ostinato {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

/// torch's and DeepSpeed's re-entrant checkpoint functions carry this name.
bool is_reentrant_checkpoint(const Node& node) { return node.name() == "CheckpointFunctionBackward"; }

}  // namespace

struct SplitBackward::Graph {
  std::unique_ptr<BackwardRoots::Edges> roots;
  std::vector<at::Tensor> leaves;  ///< inputs that want a gradient; until the first half has run
  edge_list input_edges;           ///< one per leaf, where its gradient comes out
  std::unordered_map<Node*, bool> on_input_path;  ///< every node of the graph
  std::vector<Node*> order;                       ///< the same nodes, each before those it is reached from
  edge_list weight_edges;                         ///< inputs of the weight roots
  variable_list captured;                         ///< what reached them in the first half
  bool whole = false;

  Node* first_operator() const;
  void explore();
  void find_weight_edges();
  void keep_captured(const variable_list& results);
  void cut();
};

SplitBackward::SplitBackward() = default;
SplitBackward::SplitBackward(SplitBackward&&) noexcept = default;
SplitBackward& SplitBackward::operator=(SplitBackward&&) noexcept = default;
SplitBackward::~SplitBackward() = default;

SplitBackward::SplitBackward(BackwardRoots roots, const std::vector<at::Tensor>& inputs, bool may_split)
    : graph_(std::make_unique<Graph>()) {
  graph_->roots = std::move(roots.edges_);
  if (!graph_->roots) graph_->roots = std::make_unique<BackwardRoots::Edges>();
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || !input.requires_grad()) continue;
    graph_->leaves.push_back(input);
    graph_->input_edges.push_back(torch::autograd::impl::gradient_edge(input));
  }
  graph_->whole = !may_split;
  if (!graph_->whole) graph_->explore();
  if (!graph_->whole) graph_->find_weight_edges();
}

/// The operator of the graph that ran first; null where it is a root itself. Sums of gradients (leaves) count
/// as last.
Node* SplitBackward::Graph::first_operator() const {
  std::unordered_set<Node*> seen;
  std::vector<Node*> stack;
  Node* first = nullptr;
  const auto enter = [&](Node* node) {
    if (!seen.insert(node).second) return;
    stack.push_back(node);
    if (!first || node->sequence_nr() < first->sequence_nr()) first = node;
  };
  for (const Edge& root : roots->roots) enter(root.function.get());
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    for (const Edge& next : node->next_edges()) {
      if (next.is_valid()) enter(next.function.get());
    }
  }
  const bool is_root = std::any_of(roots->roots.begin(), roots->roots.end(),
                                   [&](const Edge& root) { return root.function.get() == first; });
  return is_root ? nullptr : first;
}

/// Depth first from the roots, with a stack of its own: a graph is as deep as the model.
void SplitBackward::Graph::explore() {
  for (const Edge& edge : input_edges) on_input_path[edge.function.get()] = true;
  if (Node* first = input_edges.empty() ? first_operator() : nullptr) {
    on_input_path[first] = true;
    for (std::uint32_t i = 0; i < first->num_inputs(); ++i) weight_edges.emplace_back(first->getptr(), i);
  }
  std::vector<std::pair<Node*, std::size_t>> stack;  ///< node, next edge to look at
  const auto enter = [&](Node* node) {
    if (!on_input_path.emplace(node, false).second) return;
    whole = whole || is_reentrant_checkpoint(*node);
    stack.emplace_back(node, 0);
  };
  for (const Edge& root : roots->roots) {
    enter(root.function.get());
    while (!stack.empty()) {
      auto& [node, at] = stack.back();
      if (at < node->num_outputs()) {
        const Edge& next = node->next_edge(at++);
        if (next.is_valid()) enter(next.function.get());
        continue;
      }
      bool on_path = false;
      for (const Edge& next : node->next_edges()) {
        on_path = on_path || (next.is_valid() && on_input_path.at(next.function.get()));
      }
      on_input_path[node] = on_path;
      order.push_back(node);
      stack.pop_back();
    }
  }
}

void SplitBackward::Graph::find_weight_edges() {
  for (Node* node : order) {
    if (!on_input_path.at(node)) continue;
    bool leaves_path = false;
    for (const Edge& next : node->next_edges()) {
      leaves_path = leaves_path || (next.is_valid() && !on_input_path.at(next.function.get()));
    }
    if (!leaves_path) continue;
    for (std::uint32_t i = 0; i < node->num_inputs(); ++i) weight_edges.emplace_back(node->getptr(), i);
  }
}

void SplitBackward::Graph::keep_captured(const variable_list& results) {
  edge_list reached;
  for (std::size_t w = 0; w < weight_edges.size(); ++w) {
    const at::Tensor& gradient = results[input_edges.size() + w];
    if (!gradient.defined()) continue;  // an output of that operator that nobody used
    reached.push_back(weight_edges[w]);
    captured.push_back(gradient);
  }
  weight_edges = std::move(reached);
}

/// Nothing but the weight roots, and what lies behind them off the input paths, is needed any more.
void SplitBackward::Graph::cut() {
  std::unordered_map<Node*, bool> is_root;
  for (const Edge& edge : weight_edges) is_root[edge.function.get()] = true;
  // Nodes are freed as the last edge to them goes: keep all until the walk is over.
  edge_list cut_off;
  for (Node* node : order) {
    if (!on_input_path.at(node)) continue;
    if (!is_root.contains(node)) node->release_variables();
    for (Edge& next : node->next_edges()) {
      if (next.is_valid() && on_input_path.at(next.function.get()))
        cut_off.push_back(std::exchange(next, Edge()));
    }
  }
  // Roots that lead to no input have not run: they belong to the second half, with the gradients they were
  // given.
  on_input_path.clear();
  order.clear();
  input_edges.clear();
  leaves.clear();
}

void SplitBackward::run_inputs(const std::vector<at::Tensor>& gradients) {
  Graph& g = *graph_;
  if (g.whole) {
    g.roots->run(gradients);
    g.cut();  // while the roots still hold the nodes
    g.roots->roots.clear();
    return;
  }
  variable_list given = g.roots->pick(gradients);
  edge_list roots = std::move(g.roots->roots);
  edge_list now, later;
  variable_list now_given, later_given;
  for (std::size_t r = 0; r < roots.size(); ++r) {
    const bool on_path = g.on_input_path.at(roots[r].function.get());
    (on_path ? now : later).push_back(roots[r]);
    (on_path ? now_given : later_given).push_back(given[r]);
  }
  variable_list results(g.input_edges.size() + g.weight_edges.size());
  if (!now.empty()) {
    edge_list wanted = g.input_edges;
    wanted.insert(wanted.end(), g.weight_edges.begin(), g.weight_edges.end());
    results =
        Engine::get_default_engine().execute(now, now_given, /*keep_graph=*/true, /*create_graph=*/false,
                                             /*accumulate_grad=*/false, wanted);
  }
  for (std::size_t l = 0; l < g.leaves.size(); ++l) g.leaves[l].mutable_grad() = results[l];
  g.keep_captured(results);
  g.cut();
  g.weight_edges.insert(g.weight_edges.end(), later.begin(), later.end());
  g.captured.insert(g.captured.end(), later_given.begin(), later_given.end());
}

void SplitBackward::run_weights() {
  const std::unique_ptr<Graph> g = std::exchange(graph_, nullptr);
  if (g->weight_edges.empty()) return;
  Engine::get_default_engine().execute(g->weight_edges, g->captured, /*keep_graph=*/false,
                                       /*create_graph=*/false,
                                       /*accumulate_grad=*/true);
}

bool SplitBackward::whole() const { return graph_ && graph_->whole; }

}  // namespace ostinato
