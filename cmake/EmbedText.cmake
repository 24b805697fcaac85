# SPDX-License-Identifier: Apache-2.0
# Files as texts of a program, so that it needs none at run time.
#
#   ostinato_embed_text(ostinato_search show/page.h kShowScript show/page/data.js show/page/chart.js)
#
# defines `const std::string_view kShowScript`, which search/show/page.h declares: the files, one after another. Paths
# are from the folder of the CMakeLists.txt that calls. A file that changes is read again by the next build.
function(ostinato_embed_text target header name)
  set(text "")
  foreach(file IN LISTS ARGN)
    set(path "${CMAKE_CURRENT_SOURCE_DIR}/${file}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${path}")
    file(READ "${path}" content)
    string(APPEND text "${content}")
  endforeach()
  string(FIND "${text}" ")embedded\"" clash)
  if(NOT clash EQUAL -1)
    message(FATAL_ERROR "${ARGN}: the text holds )embedded\", which ends it")
  endif()
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  set(made "${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp")
  file(CONFIGURE OUTPUT "${made}" CONTENT [[// Made by cmake/EmbedText.cmake.
#include "@folder@/@header@"

namespace ostinato {

const std::string_view @name@ = R"embedded(@text@)embedded";

}  // namespace ostinato
]] @ONLY)
  target_sources(${target} PRIVATE "${made}")
endfunction()
