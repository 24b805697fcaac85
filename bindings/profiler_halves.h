// SPDX-License-Identifier: Apache-2.0
#pragma once
// BackwardHalves (profiler/autograd) for Python: apart from the rest of the module, because torch's
// converters of tensors take seconds to compile.

#include <pybind11/pybind11.h>

namespace ostinato {

void bind_backward_halves(pybind11::module_& module);

}  // namespace ostinato
