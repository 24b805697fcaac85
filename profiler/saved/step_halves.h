#pragma once
// A step's backward in two halves: gradients of its inputs first, of its parameters later (Qi et al., Zero
// Bubble Pipeline Parallelism, arXiv 2401.10241). What split.py is for a layer.
//
//   StepHalves halves(outputs, gradients, leaves);   // looks the graph over, before any clock starts
//   halves.run_inputs();                             // notes what arrives where branches leave to parameters
//   halves.cut();
//   halves.run_parameters();                         // starts there; adds to .grad
//
// A node is on an input path if a leaf is reached from it. One on such a path that also has an edge off it,
// to a parameter or to what is computed from parameters alone, is where the second half starts.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <unordered_map>
#include <vector>

namespace ostinato {

class StepHalves {
 public:
  /// `leaves`: get the inputs' gradients, at least one. `gradients`: of the outputs, one each; outputs that
  /// require none are left out by the caller. O(nodes of the graph).
  StepHalves(const std::vector<at::Tensor>& outputs, std::vector<at::Tensor> gradients,
             const std::vector<at::Tensor>& leaves);

  void run_inputs();

  /// Takes the input paths apart, so that the second half does not run through them again.
  void cut();

  void run_parameters();

 private:
  void explore();
  void find_starts();

  std::vector<torch::autograd::Edge> roots_, inputs_, starts_;
  std::vector<at::Tensor> gradients_, arrived_;
  std::vector<torch::autograd::Node*> order_;  ///< each after those that it leads to
  std::unordered_map<torch::autograd::Node*, bool> on_input_path_;
  std::vector<torch::autograd::Edge> cut_off_;  ///< keeps their nodes until this object ends
};

}  // namespace ostinato
