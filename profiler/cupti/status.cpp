// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti/cupti_status.h"

#include "profiler/cupti/library.h"

namespace ostinato {

CuptiStatus cupti_status() {
  CuptiStatus status;
  std::string problem;
  const cupti::Library* library = cupti::find_library(&problem);
  if (!library) {
    status.detail = problem + "; profiles use other clocks";
    return status;
  }
  status.library = library->path;
  problem = library->unusable();
  if (problem.empty()) problem = cupti::driver_problem();
  status.usable = problem.empty();
  if (!status.usable) {
    status.detail = library->path + ": " + problem;
    return status;
  }
  status.version = library->version;
  status.detail = library->path + ", version " + std::to_string(library->version) +
                  (library->shared ? ", as torch loaded it" : "");
  return status;
}

}  // namespace ostinato
