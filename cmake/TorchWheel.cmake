# SPDX-License-Identifier: Apache-2.0
# Finds the torch wheel of Python_EXECUTABLE, CPU or CUDA build alike, without find_package(Torch), which is
# fatal with a CUDA wheel on a machine without the whole CUDA toolkit.
#
# Defines: ostinato::torch (c10, torch_cpu, torch), ostinato::torch_python (with pybind11 as torch bundles it),
# and ostinato_python_module(name sources...) for an extension module of the package.
if(NOT OSTINATO_TORCH_DIR)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
            "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE OSTINATO_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(OSTINATO_TORCH_DIR "${OSTINATO_TORCH_DIR}" CACHE PATH "Folder of the torch wheel" FORCE)
endif()
if(NOT EXISTS "${OSTINATO_TORCH_DIR}/include/torch")
  message(FATAL_ERROR
    "torch was not found by ${Python_EXECUTABLE}. Install it first (pip install torch==2.13.0) and build with "
    "pip install --no-build-isolation, or pass -DOSTINATO_TORCH_DIR=<site-packages>/torch.")
endif()
execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env "PYTHONPATH=${OSTINATO_TORCH_DIR}/.." "${Python_EXECUTABLE}" -c
          "import runpy; print(runpy.run_path(r'${OSTINATO_TORCH_DIR}/version.py')['__version__'])"
  OUTPUT_VARIABLE OSTINATO_TORCH_VERSION OUTPUT_STRIP_TRAILING_WHITESPACE)
if(OSTINATO_TORCH_VERSION VERSION_LESS 2.9)  # as pyproject.toml says; a local part as +cpu compares as well
  message(FATAL_ERROR
    "torch ${OSTINATO_TORCH_VERSION} in ${OSTINATO_TORCH_DIR} is too old: ostinato needs 2.9 or newer (tested with 2.13.0)")
endif()

add_library(ostinato_torch_wheel INTERFACE)
add_library(ostinato::torch ALIAS ostinato_torch_wheel)
target_include_directories(ostinato_torch_wheel SYSTEM INTERFACE
  "${OSTINATO_TORCH_DIR}/include" "${OSTINATO_TORCH_DIR}/include/torch/csrc/api/include")
target_link_directories(ostinato_torch_wheel INTERFACE "${OSTINATO_TORCH_DIR}/lib")
target_link_libraries(ostinato_torch_wheel INTERFACE c10 torch_cpu torch)
target_link_options(ostinato_torch_wheel INTERFACE "-Wl,-rpath,${OSTINATO_TORCH_DIR}/lib")
target_compile_definitions(ostinato_torch_wheel INTERFACE
  USE_DISTRIBUTED USE_C10D_GLOO OSTINATO_TORCH_VERSION="${OSTINATO_TORCH_VERSION}")

add_library(ostinato_torch_python INTERFACE)
add_library(ostinato::torch_python ALIAS ostinato_torch_python)
target_link_libraries(ostinato_torch_python INTERFACE ostinato::torch torch_python)

# pybind11 as torch bundles it: another internals version would refuse torch's own Python types.
add_library(ostinato_pybind INTERFACE)
add_library(ostinato::pybind ALIAS ostinato_pybind)
target_include_directories(ostinato_pybind SYSTEM INTERFACE "${OSTINATO_TORCH_DIR}/include")

function(ostinato_python_module name)
  Python_add_library(${name} MODULE WITH_SOABI ${ARGN})
  ostinato_target(${name})
  target_link_libraries(${name} PRIVATE ostinato::pybind)
  set_target_properties(${name} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/python/ostinato"
    CXX_VISIBILITY_PRESET hidden
    INSTALL_RPATH "$ORIGIN/../torch/lib")
  install(TARGETS ${name} LIBRARY DESTINATION ostinato)
endfunction()
