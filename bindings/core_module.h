// SPDX-License-Identifier: Apache-2.0
#pragma once
// The core for Python (search/python/core.py): placements, profiles, devices and plans as objects, and
// what is done with them.

#include <pybind11/pybind11.h>

namespace ostinato {

void bind_core(pybind11::module_& module);

}  // namespace ostinato
