// SPDX-License-Identifier: Apache-2.0
#pragma once
// The executor as Python sees it: stages are callables, the GIL is held only inside them.

#include <torch/csrc/utils/pybind.h>

namespace ostinato {

/// Adds Executor, ExecutionError and StepTimeout to the module.
void bind_executor(py::module_& m);

}  // namespace ostinato
