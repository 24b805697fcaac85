# SPDX-License-Identifier: Apache-2.0
# The torch wheel in ostinato_torch_dir (Requirements.cmake), CPU or CUDA build alike, without find_package(Torch), which
# is fatal with a CUDA wheel on a machine without the whole CUDA toolkit.
#
# Defines ostinato::torch (c10, torch_cpu, torch) and ostinato::torch_python.
add_library(ostinato_torch_wheel INTERFACE)
add_library(ostinato::torch ALIAS ostinato_torch_wheel)
target_include_directories(ostinato_torch_wheel SYSTEM INTERFACE
  "${ostinato_torch_dir}/include" "${ostinato_torch_dir}/include/torch/csrc/api/include")
target_link_directories(ostinato_torch_wheel INTERFACE "${ostinato_torch_dir}/lib")
target_link_libraries(ostinato_torch_wheel INTERFACE c10 torch_cpu torch)
target_link_options(ostinato_torch_wheel INTERFACE "-Wl,-rpath,${ostinato_torch_dir}/lib")
target_compile_definitions(ostinato_torch_wheel INTERFACE
  $<$<CONFIG:Debug>:NDEBUG>  # as the wheel: some of its classes have members only without it (at::RecordFunction)
  USE_DISTRIBUTED USE_C10D_GLOO OSTINATO_TORCH_VERSION="${ostinato_torch_version}")
# c10/core/impl/PyObjectSlot.h has a fence, which GCC's thread sanitizer does not know: it is for Python's objects, of
# which the C++ tests have none.
if(OSTINATO_SANITIZE MATCHES "thread")
  target_compile_options(ostinato_torch_wheel INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
endif()

add_library(ostinato_torch_python INTERFACE)
add_library(ostinato::torch_python ALIAS ostinato_torch_python)
target_link_libraries(ostinato_torch_python INTERFACE ostinato::torch torch_python)
