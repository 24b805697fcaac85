// SPDX-License-Identifier: Apache-2.0
#include "profiler/autograd/backward_halves.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/tensor.h>

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>

namespace ostinato {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

/// torch's and DeepSpeed's re-entrant checkpoint functions carry the first name; what torch.compile makes of
/// a layer carries the second.
bool runs_once_and_whole(const Node& node) {
  const std::string name = node.name();
  return name == "CheckpointFunctionBackward" || name == "CompiledFunctionBackward";
}

/// torch's own derivatives compute the gradients that are asked for, and nothing else: they may run in both
/// halves. Anything else, such as an autograd.Function, computes all of them each time, and may change what
/// it saved, or a weight's main_grad, as it does so.
bool runs_once(const Node& node) {
  return dynamic_cast<const torch::autograd::TraceableFunction*>(&node) == nullptr &&
         dynamic_cast<const torch::autograd::CopySlices*>(&node) == nullptr &&
         dynamic_cast<const torch::autograd::CopyBackwards*>(&node) == nullptr;
}

/// Takes the gradient of an edge.
struct Sink : Node {
  explicit Sink(const Edge& of) { input_metadata_.push_back(of.function->input_metadata(of.input_nr)); }
  variable_list apply(variable_list&&) override { return {}; }
};

/// As torch holds nodes: shared until 2.12, intrusive from 2.13.
template <typename Pointer, typename S = Sink>
Pointer sink(const Edge& of) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>)
    return std::make_shared<S>(of);
  else
    return c10::make_intrusive<S>(of);
}

/// torch's backward of a group normalisation in channels_last writes the input's gradient wherever it was not
/// asked for, too: to address 0 (2.13, CPU; native_group_norm_backward with the mask false, true, true).
bool needs_all_gradients(const Node& node) { return node.name() == "NativeGroupNormBackward0"; }

/// Does an edge of the node lead to one on an input path (`wanted`), or off them?
bool leads(Node& node, const std::unordered_map<Node*, bool>& on_input_path, bool wanted) {
  return std::any_of(node.next_edges().begin(), node.next_edges().end(), [&](const Edge& next) {
    return next.is_valid() && on_input_path.at(next.function.get()) == wanted;
  });
}

/// Whether something is called with its gradients before it runs: Tensor.register_hook(), retain_grad(),
/// Node.register_prehook().
bool is_hooked(Node& node) {
  return !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() || !node.pre_hooks().empty();
}

/// Behind a node's hooks: keeps what they made of its gradients.
struct Recorder : torch::autograd::FunctionPreHook {
  explicit Recorder(variable_list& made) : made_(made) {}
  variable_list operator()(const variable_list& gradients) override { return made_ = gradients; }
  variable_list& made_;
};

void add_inputs(edge_list& edges, Node& node) {
  for (std::uint32_t i = 0; i < node.num_inputs(); ++i) edges.emplace_back(node.getptr(), i);
}

}  // namespace

BackwardHalves::BackwardHalves(edge_list roots, edge_list inputs, std::uint64_t first)
    : roots_(std::move(roots)), inputs_(std::move(inputs)), first_(first) {
  explore();
  if (can_split_)
    find_weight_roots();
  else
    starts_.clear();
}

/// The operator of the graph that ran first; null where it is a root itself. Sums of gradients (leaves) count
/// as last.
Node* BackwardHalves::first_operator() const {
  std::unordered_set<Node*> seen;
  std::vector<Node*> stack;
  Node* first = nullptr;
  const auto enter = [&](Node* node) {
    if (node->sequence_nr() < first_ || !seen.insert(node).second) return;
    stack.push_back(node);
    if (!first || node->sequence_nr() < first->sequence_nr()) first = node;
  };
  for (const Edge& root : roots_) enter(root.function.get());
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    for (const Edge& next : node->next_edges()) {
      if (next.is_valid()) enter(next.function.get());
    }
  }
  const bool is_root = std::any_of(roots_.begin(), roots_.end(),
                                   [&](const Edge& root) { return root.function.get() == first; });
  return is_root ? nullptr : first;
}

/// Depth first from the roots, with an explicit stack: a graph is as deep as the model.
void BackwardHalves::explore() {
  for (const Edge& input : inputs_) on_input_path_[input.function.get()] = true;
  if (Node* first = inputs_.empty() ? first_operator() : nullptr) {
    on_input_path_[first] = true;
    add_inputs(starts_, *first);
  }
  std::vector<std::pair<Node*, std::size_t>> stack;  // node, next edge to look at
  const auto enter = [&](Node* node) {
    if (!on_input_path_.emplace(node, false).second) return;
    can_split_ = can_split_ && !runs_once_and_whole(*node);
    stack.emplace_back(node, 0);
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
      on_input_path_[node] = leads(*node, on_input_path_, true);
      order_.push_back(node);
      stack.pop_back();
    }
  }
}

void BackwardHalves::find_weight_roots() {
  for (Node* node : order_) {
    if (!on_input_path_.at(node) || !leads(*node, on_input_path_, false)) continue;
    if (runs_once(*node))
      run_once_.push_back(node);
    else
      add_inputs(starts_, *node);
  }
}

bool BackwardHalves::has_input_half() const {
  return std::any_of(roots_.begin(), roots_.end(),
                     [&](const Edge& root) { return on_input_path_.at(root.function.get()); });
}

bool BackwardHalves::has_weight_half() const {
  return !starts_.empty() || !run_once_.empty() ||
         std::any_of(roots_.begin(), roots_.end(),
                     [&](const Edge& root) { return !on_input_path_.at(root.function.get()); });
}

/// Their gradients for weights end in sinks: at the edges themselves, those of weight roots would be counted,
/// which the second half computes.
edge_list BackwardHalves::divert_once() {
  edge_list diverted;
  for (Node* node : run_once_) {
    for (Edge& next : node->next_edges()) {
      if (!next.is_valid() || on_input_path_.at(next.function.get())) continue;
      const Edge aside(sink<decltype(Edge::function)>(next), 0);
      on_input_path_[aside.function.get()] = true;  // for cut()
      starts_.push_back(std::exchange(next, aside));
      diverted.push_back(aside);
    }
  }
  run_once_.clear();
  return diverted;
}

void BackwardHalves::record_hooks() {
  for (const Edge& start : starts_) {
    Node& node = *start.function;
    if (!is_hooked(node) || hooked_.contains(&node)) continue;
    node.add_pre_hook(std::make_unique<Recorder>(hooked_[&node]));
  }
}

/// The engine has called hooks of tensors also of the operator that stands for the inputs, which has not run.
void BackwardHalves::drop_hooks() {
  for (auto& [node, made] : hooked_) {
    node->tensor_pre_hooks().clear();
    node->retains_grad_hooks().clear();
    if (made.empty())
      node->pre_hooks().pop_back();
    else
      node->pre_hooks().clear();
  }
  hooked_.clear();
}

variable_list BackwardHalves::run_inputs(const variable_list& gradients) {
  edge_list now, later, wanted = inputs_;
  variable_list given, given_later;
  for (std::size_t r = 0; r < roots_.size(); ++r) {
    const bool on_path = on_input_path_.at(roots_[r].function.get());
    (on_path ? now : later).push_back(roots_[r]);
    (on_path ? given : given_later).push_back(gradients[r]);
  }
  wanted.insert(wanted.end(), starts_.begin(), starts_.end());
  record_hooks();
  const edge_list diverted = divert_once();
  wanted.insert(wanted.end(), diverted.begin(), diverted.end());
  variable_list results(wanted.size());
  if (!now.empty()) {
    results = Engine::get_default_engine().execute(now, given, /*keep_graph=*/true, /*create_graph=*/false,
                                                   /*accumulate_grad=*/false, wanted);
  }
  edge_list reached;
  for (std::size_t s = 0; s < starts_.size(); ++s) {
    const auto made = hooked_.find(starts_[s].function.get());
    const bool by_hooks = made != hooked_.end() && !made->second.empty();
    const at::Tensor& gradient = by_hooks ? made->second[starts_[s].input_nr] : results[inputs_.size() + s];
    if (!gradient.defined()) continue;  // an unused output of that operator
    reached.push_back(starts_[s]);
    arrived_.push_back(gradient);
  }
  drop_hooks();
  starts_ = std::move(reached);
  starts_.insert(starts_.end(), later.begin(), later.end());
  arrived_.insert(arrived_.end(), given_later.begin(), given_later.end());
  results.resize(inputs_.size());
  return results;
}

void BackwardHalves::cut() {
  std::unordered_set<Node*> starts;
  for (const Edge& start : starts_) starts.insert(start.function.get());
  // Nodes are freed as the last edge to them goes: keep all until the walk is over.
  edge_list cut_off;
  for (Node* node : order_) {
    if (!on_input_path_.at(node)) continue;
    if (!starts.contains(node)) node->release_variables();
    for (Edge& next : node->next_edges()) {
      if (!next.is_valid() || !on_input_path_.at(next.function.get())) continue;
      const bool sinks = starts.contains(node) && needs_all_gradients(*node);
      cut_off.push_back(std::exchange(next, sinks ? Edge(sink<decltype(Edge::function)>(next), 0) : Edge()));
    }
  }
  on_input_path_.clear();
  order_.clear();
  inputs_.clear();
  roots_.clear();
}

void BackwardHalves::run_weights() {
  const edge_list starts = std::exchange(starts_, {});
  const variable_list arrived = std::exchange(arrived_, {});
  if (starts.empty()) return;
  Engine::get_default_engine().execute(starts, arrived, /*keep_graph=*/false, /*create_graph=*/false,
                                       /*accumulate_grad=*/true);
}

}  // namespace ostinato
