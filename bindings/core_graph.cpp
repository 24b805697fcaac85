// SPDX-License-Identifier: Apache-2.0
// Operator graphs for Python.

#include <tuple>

#include "bindings/aside.h"
#include "bindings/core/graph_partition.h"
#include "bindings/held.h"

namespace py = pybind11;

namespace ostinato {
namespace {

/// What is printed with --json, the rows of the file, the text, and whether it was interrupted.
using Assigned = std::tuple<std::string, std::string, std::string, bool>;

Assigned assigned(const core::GraphProblem& problem, core::GraphRequest request) {
  const graph::GraphCosts costs = core::costs_of(problem);
  Aside aside{py::none()};
  const core::GraphOutcome outcome = aside.run([&](const std::atomic<bool>* stop, const Aside::Report&) {
    request.interrupted = [stop] { return stop->load(); };
    return core::assign(problem, costs, request);
  });
  return {core::graph_json(problem, outcome).text(), core::assignment_csv(problem, costs, outcome),
          core::graph_text(problem, costs, outcome), aside.interrupted()};
}

}  // namespace

void bind_graph(py::module_& m) {
  py::class_<core::GraphRequest>(m, "GraphRequest")
      .def(py::init([](const std::string& strategy, const std::string& schedule, std::uint64_t seed, int runs,
                       double time_limit, bool published) {
             core::GraphRequest request{.strategy = strategy,
                                        .schedule = schedule,
                                        .seed = seed,
                                        .runs = runs,
                                        .time_limit_seconds = time_limit,
                                        .published = published};
             core::check(request);
             return request;
           }),
           py::arg("strategy"), py::arg("schedule"), py::arg("seed"), py::arg("runs"), py::arg("time_limit"),
           py::arg("published_program"));
  m.def("partition_graph",
        [](const std::string& graph, const std::string& devices, const core::GraphRequest& request) {
          return assigned(core::read_graph_problem(graph, devices), request);
        });
  m.def("partition_layers", [](const HeldProfile& profile, const HeldDevices& devices, bool inference,
                               bool allow_incomplete, const core::GraphRequest& request) {
    PartitionOptions options = devices.on;
    options.inference = inference;
    options.allow_incomplete = allow_incomplete;
    return assigned(core::graph_problem(profile.profile, options, "the profile"), request);
  });
}

}  // namespace ostinato
