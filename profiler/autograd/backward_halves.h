// SPDX-License-Identifier: Apache-2.0
#pragma once
// A backward in two halves: first the gradients of the inputs, later of the weights (Qi et al., Zero Bubble
// Pipeline Parallelism, arXiv 2401.10241).
//
//   BackwardHalves halves(roots, inputs);             // looks the graph over
//   variable_list found = halves.run_inputs(given);   // a gradient per root in, one per input out
//   halves.cut();                                     // lets go of what the second half does not need
//   halves.run_weights();                             // adds to the weights' .grad
//
// A node of the autograd graph is on an input path if an input can be reached from it. A node on such a path
// that also has an edge leaving it (to a weight, or to what is computed from weights alone) is a weight root.
// The first half runs the input paths only and captures what reaches each weight root; the second starts
// there. A root that leads to no input waits for the second half with the gradient that it was given.
//
// So a weight root runs in both halves, each time for other gradients. Its hooks are called in the first
// half, and the second starts from the gradients that they made. What is not torch's own, such as an
// autograd.Function, runs once, in the first half: the second starts from the gradients that it made for
// weights.
//
// Without inputs the operator that ran first, an embedding mostly, takes their place: all that lies behind
// it runs in the first half. Where that operator is itself a root, all of it runs in the second.

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace ostinato {

class BackwardHalves {
 public:
  /// `roots`: where gradients are given. `inputs`: where input gradients come out. Both hold the graph until
  /// cut(). `first`: the sequence number that the first node of this graph may have: earlier nodes belong to
  /// a shared graph, which is not taken apart. O(nodes of the graph).
  BackwardHalves(torch::autograd::edge_list roots, torch::autograd::edge_list inputs,
                 std::uint64_t first = 0);

  /// False where a re-entrant checkpoint is part of the graph, which torch refuses to enter in parts, or a
  /// compiled function, whose memory is gone after one run: only cut() may be called then.
  bool can_split() const { return can_split_; }

  /// False where every root waits for the second half.
  bool has_input_half() const;

  /// False where nothing but the inputs is reached. Before run_inputs().
  bool has_weight_half() const;

  /// `gradients`: one per root, all defined. Returns one per input; undefined where nothing reached it. The
  /// graph is kept. Without the GIL.
  torch::autograd::variable_list run_inputs(const torch::autograd::variable_list& gradients);

  /// After run_inputs(), or after somebody else's run of a graph that cannot be split: takes the input paths
  /// apart and releases what their nodes saved, but for the weight roots.
  void cut();

  /// After cut(). Nothing of the graph is left afterwards. Without the GIL.
  void run_weights();

 private:
  torch::autograd::Node* first_operator() const;
  void explore();
  void find_weight_roots();
  torch::autograd::edge_list divert_once();
  void record_hooks();
  void drop_hooks();

  torch::autograd::edge_list roots_, inputs_;
  std::unordered_map<torch::autograd::Node*, bool> on_input_path_;  ///< every node of the graph
  std::vector<torch::autograd::Node*> order_;     ///< without the inputs: each after the nodes it leads to
  std::vector<torch::autograd::Node*> run_once_;  ///< weight roots that are not torch's own
  torch::autograd::edge_list starts_;  ///< of the second half: the other roots' inputs, those ones' weights
  torch::autograd::variable_list arrived_;  ///< there, in the first half
  /// Nodes of starts_ with hooks, during the first half, and the gradients that these made; empty: the node
  /// has not run.
  std::unordered_map<torch::autograd::Node*, torch::autograd::variable_list> hooked_;
  std::uint64_t first_;
  bool can_split_ = true;
};

}  // namespace ostinato
