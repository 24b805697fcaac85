// SPDX-License-Identifier: Apache-2.0
// The Python module ostinato._search: the command line in C++, and the core as objects, without libtorch, so
// that it starts quickly.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <iostream>
#include <string>
#include <vector>

#include "bindings/cli/cli.h"
#include "bindings/core_module.h"

namespace py = pybind11;

PYBIND11_MODULE(_search, m) {
  m.doc() = "What needs no torch: that half of the command line, and what ostinato.core wraps.";
  m.def(
      "main",
      [](const std::vector<std::string>& args, const std::string& launcher) {
        const py::gil_scoped_release release;
        return ostinato::cli::run(args, std::cout, std::cerr, launcher);
      },
      py::arg("args"), py::arg("launcher") = "",
      "Runs a command, given without the program's name; writes to file descriptors 1 and 2. Returns the "
      "exit status.");
  ostinato::bind_core(m);
  m.def("version", &ostinato::cli::version, "The version of the program.");
  m.def("commands", &ostinato::cli::command_names, "Every command, in the order of the pipeline.");
}
