#include "profiler/cupti_status.h"

#include <dlfcn.h>

#include <array>

namespace ostinato {
namespace {

constexpr std::array kNames = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};

struct Library {
  void* handle = nullptr;
  std::string name;
};

Library find(int flags) {
  for (const char* name : kNames) {
    if (void* handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL | flags)) return {handle, name};
  }
  return {};
}

}  // namespace

CuptiStatus cupti_status() {
  Library library = find(RTLD_NOLOAD);
  const bool shared = library.handle != nullptr;
  if (!shared) library = find(0);
  CuptiStatus status;
  if (library.handle == nullptr) {
    status.detail =
        "libcupti was not found: profiles use the CPU's clock (CUDA builds of torch bring libcupti)";
    return status;
  }
  status.library = library.name;
  using GetVersion = int (*)(std::uint32_t*);
  const auto get_version = reinterpret_cast<GetVersion>(dlsym(library.handle, "cuptiGetVersion"));
  if (get_version == nullptr || get_version(&status.version) != 0) status.version = 0;
  status.usable = status.version != 0;
  status.detail = library.name;
  if (!status.usable) {
    status.detail += " is there, and says that it cannot be used";
  } else {
    status.detail += ", version " + std::to_string(status.version) + (shared ? ", as torch loaded it" : "");
  }
  dlclose(library.handle);
  return status;
}

}  // namespace ostinato
