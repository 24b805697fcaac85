# SPDX-License-Identifier: Apache-2.0
# How every target of ours is compiled. Third-party targets are left alone.

find_program(OSTINATO_CCACHE ccache)
if(OSTINATO_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # With precompiled headers ccache caches only under this sloppiness (its manual, "Precompiled headers"), and
  # another build tree has the same objects only where the paths of its headers are relative.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_SLOPPINESS=pch_defines,time_macros "${OSTINATO_CCACHE}")
endif()

# ostinato_precompile(name header...): headers that most files of the target include, compiled once. System headers
# only, so that no edit of ours compiles all. ostinato_precompiled_of(name other): takes those of another target, whose
# flags are the same but for -O and for definitions that the other has not (else -Winvalid-pch says so, an error).
function(ostinato_precompile name)
  if(OSTINATO_PRECOMPILE)
    target_precompile_headers(${name} PRIVATE ${ARGN})
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)  # ccache asks for it
  endif()
endfunction()

function(ostinato_precompiled_of name other)
  if(OSTINATO_PRECOMPILE)
    target_precompile_headers(${name} REUSE_FROM ${other})
    # -fPIC: an executable's own -fPIE would not go with what a library compiled.
    target_compile_options(${name} PRIVATE -fPIC $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  endif()
endfunction()

# ostinato_compile_quickly(name): for what is never hot. -O1 compiles in two thirds of the time of -O3.
function(ostinato_compile_quickly name)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# ostinato_target(name): warnings (errors with OSTINATO_WERROR), sanitizers, link-time checks, includes by room ("search/plan/plan.h").
function(ostinato_target name)
  target_compile_features(${name} PUBLIC cxx_std_20)  # of a project, too, that adds this one as a folder
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wshadow $<$<BOOL:${OSTINATO_WERROR}>:-Werror>)
  if(OSTINATO_LTO)
    target_compile_options(${name} PRIVATE -flto=auto)
    # Not -Werror: what else is said when linking are GCC 12's false alarms about std::string.
    target_link_options(${name} PRIVATE -flto=auto -Werror=odr -Werror=lto-type-mismatch)
  endif()
  if(OSTINATO_FUZZ)
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer-no-link)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  if(OSTINATO_SANITIZE)
    target_compile_options(${name} PRIVATE -fsanitize=${OSTINATO_SANITIZE} -fno-omit-frame-pointer)
    if(OSTINATO_SANITIZE MATCHES "undefined")  # which else is printed, and the test passes
      target_compile_options(${name} PRIVATE -fno-sanitize-recover=undefined)
    endif()
    target_link_options(${name} PRIVATE -fsanitize=${OSTINATO_SANITIZE})
  endif()
endfunction()
