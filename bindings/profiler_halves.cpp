// SPDX-License-Identifier: Apache-2.0
#include "bindings/profiler_halves.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

#include "profiler/autograd/backward_halves.h"

namespace py = pybind11;

namespace ostinato {
namespace {

torch::autograd::edge_list edges_of(const std::vector<at::Tensor>& tensors) {
  torch::autograd::edge_list edges;
  for (const at::Tensor& tensor : tensors) edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  return edges;
}

}  // namespace

void bind_backward_halves(py::module_& module) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<BackwardHalves>(module, "BackwardHalves",
                             "A backward in two halves, as the executor runs it (backward_halves.h).")
      .def(py::init([](const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs) {
             return std::make_unique<BackwardHalves>(edges_of(outputs), edges_of(inputs));
           }),
           py::arg("outputs"), py::arg("inputs"))
      .def_property_readonly("can_split", &BackwardHalves::can_split)
      .def_property_readonly("has_input_half", &BackwardHalves::has_input_half)
      .def_property_readonly("has_weight_half", &BackwardHalves::has_weight_half)
      .def("run_inputs", &BackwardHalves::run_inputs, py::arg("gradients"), NoGil())
      .def("cut", &BackwardHalves::cut, NoGil())
      .def("run_weights", &BackwardHalves::run_weights, NoGil());
}

}  // namespace ostinato
