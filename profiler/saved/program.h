// SPDX-License-Identifier: Apache-2.0
#pragma once
// A saved TorchScript program as steps: each call of a submodule, and each operator beside them, with what
// they read of each other. No Python: the file is read by torch::jit::load().
//
//   const SavedProgram program = load_program("model.pt", {sample_input("8x16")}, {});
//   for (const SavedStep& step : program.steps) ...         // in the order in which the program runs them
//
// A module that does nothing but call one other is looked into, until something calls several; `depth` says
// how many levels instead. What computes sizes or puts tensors into lists and tuples runs once, while the
// program is loaded, and is part of no step: the shapes are those of the sample inputs.
//
// Not supported, each with its own message: a torch.export archive (.pt2; the Python package profiles those),
// a pickle of torch.save() (it needs its Python classes), and a forward that is looked into and branches on
// values.

#include <torch/csrc/jit/api/module.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "search/placement/placement.h"

namespace ostinato {

/// Where a tensor comes from.
struct TensorSource {
  int step = -1;   ///< -1: an input of the program, or one of its parameters
  int tensor = 0;  ///< which of the step's output tensors
};

struct SavedStep {
  std::string name;      ///< "3:encoder.1" | "4:aten::add"
  std::string identity;  ///< equal for steps that do the same on inputs of the same shapes
  std::function<std::vector<c10::IValue>(std::vector<c10::IValue>)> run;
  std::vector<c10::IValue> inputs;    ///< as the program gives them, without gradients
  std::vector<TensorSource> sources;  ///< of each tensor of `inputs`
  std::vector<at::Tensor> parameters, buffers;
  bool takes_gradient = false;  ///< whether gradients flow through its inputs
  Bytes output_bytes = 0;
};

/// Whether an input is one of the step's own parameters or buffers, which an operator is given like any
/// tensor.
bool is_state(const SavedStep& step, const at::Tensor& tensor);

struct LoadOptions {
  std::optional<int> depth;  ///< levels of submodules to look into; empty: to where something calls several
  bool train = true;         ///< the program runs as in training (dropout, batch statistics)
  std::string loss = "";     ///< of its output, as a last step (loss.h); "": none
};

struct SavedProgram {
  torch::jit::Module module;  ///< keeps what the steps refer to
  std::vector<SavedStep> steps;
};

/// Throws InputError: what the file is instead, or which input the program refuses.
SavedProgram load_program(const std::filesystem::path& path, const std::vector<at::Tensor>& inputs,
                          const LoadOptions& options);

}  // namespace ostinato
