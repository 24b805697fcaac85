# SPDX-License-Identifier: Apache-2.0
# ostinato_python_module(name component sources...): an extension module of the package. Of component "torch" is what links
# torch: the wheel ostinato-deepspeed (bindings/deepspeed-wheel) holds that alone.
#
# pybind11 is torch's copy, since another version of its internals would refuse torch's own Python types; without torch it
# is PyPI's.
add_library(ostinato_pybind INTERFACE)
add_library(ostinato::pybind ALIAS ostinato_pybind)
target_include_directories(ostinato_pybind SYSTEM INTERFACE "${ostinato_pybind_dir}")

function(ostinato_python_module name component)
  Python_add_library(${name} MODULE WITH_SOABI ${ARGN})
  ostinato_target(${name})
  target_link_libraries(${name} PRIVATE ostinato::pybind)
  set_target_properties(${name} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/python/ostinato"
    CXX_VISIBILITY_PRESET hidden
    INSTALL_RPATH "$ORIGIN/../torch/lib")
  install(TARGETS ${name} LIBRARY DESTINATION ostinato COMPONENT ${component})
endfunction()

if(SKBUILD_PROJECT_NAME STREQUAL "ostinato_deepspeed")  # whose folder has no licences for license-files to name
  install(FILES LICENSE NOTICE DESTINATION "${SKBUILD_METADATA_DIR}/licenses" COMPONENT torch)
  install(DIRECTORY third_party DESTINATION "${SKBUILD_METADATA_DIR}/licenses" COMPONENT torch
          FILES_MATCHING PATTERN "LICENSE*")
endif()
