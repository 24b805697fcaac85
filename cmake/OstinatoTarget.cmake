# SPDX-License-Identifier: Apache-2.0
# How every target of ours is compiled. Third-party targets are left alone.

find_program(OSTINATO_CCACHE ccache)
if(OSTINATO_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${OSTINATO_CCACHE}")
endif()

# A message that names the package when a library is missing (there are no downloads from code hosts).
function(ostinato_need_header header package out)
  find_path(OSTINATO_${out}_INCLUDE "${header}")
  if(NOT OSTINATO_${out}_INCLUDE)
    message(FATAL_ERROR "${header} was not found: install ${package} (Debian), or run script/setup")
  endif()
endfunction()

# ostinato_target(name): warnings as errors, sanitizers, link-time checks, includes by room ("search/plan/plan.h").
function(ostinato_target name)
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE -Wall -Wextra -Werror)
  if(OSTINATO_LTO)
    target_compile_options(${name} PRIVATE -flto=auto)
    # Not -Werror: what else is said when linking are GCC 12's false alarms about std::string.
    target_link_options(${name} PRIVATE -flto=auto -Werror=odr -Werror=lto-type-mismatch)
  endif()
  if(OSTINATO_SANITIZE)
    target_compile_options(${name} PRIVATE -fsanitize=${OSTINATO_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${name} PRIVATE -fsanitize=${OSTINATO_SANITIZE})
  endif()
endfunction()
