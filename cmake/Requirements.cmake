# SPDX-License-Identifier: Apache-2.0
# All that the build takes from the machine is looked for here, and all that is missing is said at once.
#
# Enables C++. Sets Python_EXECUTABLE and what else FindPython sets; OSTINATO_TORCH to ON or OFF where it was AUTO; with
# torch ostinato_torch_dir (the folder of its wheel) and ostinato_torch_version ("2.13.0+cpu"); ostinato_pybind_dir.
include(CheckLanguage)
set(ostinato_missing "")

# what: the thing and, where it is known, how to get it.
macro(ostinato_lacks what)
  list(APPEND ostinato_missing "${what}")
endmacro()

check_language(CXX)
if(CMAKE_CXX_COMPILER)
  enable_language(CXX)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 11)
    ostinato_lacks("a C++20 compiler: g++ 11 or newer (${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_VERSION})")
  endif()
  if(OSTINATO_TESTS OR OSTINATO_BENCH)
    find_package(GTest QUIET)
    if(NOT GTest_FOUND)
      ostinato_lacks("GoogleTest (Debian: libgtest-dev libgmock-dev), or -DOSTINATO_TESTS=OFF")
    endif()
  endif()
  if(OSTINATO_BENCH)
    find_package(benchmark QUIET)
    if(NOT benchmark_FOUND)
      ostinato_lacks("Google Benchmark (Debian: libbenchmark-dev), or -DOSTINATO_BENCH=OFF")
    endif()
  endif()
else()
  ostinato_lacks("a C++20 compiler (Debian: g++)")
endif()

if(OSTINATO_PYTHON OR NOT OSTINATO_TORCH STREQUAL "OFF")
  find_package(Python 3.11 QUIET COMPONENTS Interpreter)
  if(NOT Python_EXECUTABLE)
    ostinato_lacks("Python 3.11 or newer, or -DPython_EXECUTABLE=<python>")
  elseif(OSTINATO_PYTHON AND CMAKE_CXX_COMPILER)  # FindPython looks for headers only where there is a compiler
    find_package(Python 3.11 QUIET COMPONENTS Interpreter Development.Module)
    if(NOT Python_Development.Module_FOUND)
      ostinato_lacks("the headers of ${Python_EXECUTABLE} (Debian: python3-dev)")
    endif()
  endif()
endif()

# Asks Python for the folder of a package: as Python was started, and then without PYTHON* variables, because pip's
# isolated build hides with them what is installed beside the package-to-be, and that torch is the one to build for.
function(ostinato_find_package_of_python package out)
  set(ask "import importlib.util as u; s = u.find_spec('${package}'); print(s.submodule_search_locations[0] if s else '')")
  set(found "")
  foreach(options "" "-E")
    if(NOT found AND Python_EXECUTABLE)
      execute_process(COMMAND "${Python_EXECUTABLE}" ${options} -c "${ask}" OUTPUT_VARIABLE found
                      OUTPUT_STRIP_TRAILING_WHITESPACE)
    endif()
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

if(NOT OSTINATO_TORCH STREQUAL "OFF")
  set(ostinato_torch_dir "${OSTINATO_TORCH_DIR}")
  if(NOT ostinato_torch_dir)
    ostinato_find_package_of_python(torch ostinato_torch_dir)
  endif()
  if(EXISTS "${ostinato_torch_dir}/include/torch" AND EXISTS "${ostinato_torch_dir}/version.py")
    set(OSTINATO_TORCH ON)
    set(ostinato_pybind_dir "${ostinato_torch_dir}/include")
    file(STRINGS "${ostinato_torch_dir}/version.py" ostinato_torch_version REGEX "^__version__ = ")
    string(REGEX REPLACE "^__version__ = '([^']*)'.*" "\\1" ostinato_torch_version "${ostinato_torch_version}")
    if(ostinato_torch_version VERSION_LESS 2.9)  # a local part as +cpu compares as well
      ostinato_lacks("torch 2.9 or newer: ${ostinato_torch_dir} is ${ostinato_torch_version} (tested with 2.13.0)")
    endif()
  elseif(OSTINATO_TORCH STREQUAL "AUTO" AND NOT ostinato_torch_dir)
    message(STATUS "No torch beside ${Python_EXECUTABLE}: building search, verify and show, but no profiler and plugin")
    set(OSTINATO_TORCH OFF)
  else()
    ostinato_lacks("torch: pip install torch==2.13.0, or -DOSTINATO_TORCH_DIR=<site-packages>/torch")
  endif()
endif()

if(OSTINATO_PYTHON AND OSTINATO_TORCH STREQUAL "OFF")
  ostinato_find_package_of_python(pybind11 ostinato_pybind_dir)
  set(ostinato_pybind_dir "${ostinato_pybind_dir}/include")
  if(NOT EXISTS "${ostinato_pybind_dir}/pybind11/pybind11.h")
    ostinato_lacks("pybind11, since there is no torch to bring it: pip install pybind11")
  endif()
endif()

if(ostinato_missing)
  list(JOIN ostinato_missing "\n  - " ostinato_missing)
  message(FATAL_ERROR "the build lacks:\n  - ${ostinato_missing}\n")
endif()
