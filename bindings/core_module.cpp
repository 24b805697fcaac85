// SPDX-License-Identifier: Apache-2.0
#include "bindings/core_module.h"

#include <tuple>

#include "bindings/core/usage_error.h"
#include "bindings/held.h"
#include "search/files/error.h"
#include "search/portfolio/search_options.h"

namespace py = pybind11;

namespace ostinato {
namespace {

/// The exception of ostinato.errors of that name.
template <typename... Arguments>
void raise(const char* name, const Arguments&... arguments) {
  const py::object type = py::module_::import("ostinato.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(arguments...).ptr());
}

void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const core::UsageError& usage) {
    raise("UsageError", usage.what());
  } catch (const InputError& input) {
    raise("InputError", input.what(), input.file(), input.line());
  } catch (const InfeasibleError& infeasible) {
    raise("InfeasibleError", infeasible.what());
  } catch (const UndecidedError& undecided) {
    raise("UndecidedError", undecided.what());
  }
}

}  // namespace

void bind_core(py::module_& m) {
  py::register_local_exception_translator(translate);
  bind_placement(m);
  bind_plan(m);
  bind_profile(m);
  bind_search(m);
  bind_graph(m);
  m.def("option_table", [] {
    std::vector<std::tuple<std::string, std::string, std::string>> rows;  // section, key, default
    for (const core::OptionRow& row : core::option_table())
      rows.emplace_back(row.section, row.key, row.fallback);
    return rows;
  });
}

}  // namespace ostinato
