// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti/library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace ostinato::cupti {
namespace {

namespace fs = std::filesystem;

template <typename Function>
bool bind(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
  return *function != nullptr;
}

/// Fills the table; the name of the first required function that is missing, or nullptr.
const char* bind_all(void* handle, Functions* call) {
  bind(handle, "cuptiSubscribe_v2", &call->subscribe_v2);
  const char* missing = nullptr;
  auto need = [&](const char* name, auto* function) {
    if (!bind(handle, name, function) && !missing) missing = name;
  };
  need("cuptiGetVersion", &call->get_version);
  need("cuptiGetResultString", &call->get_result_string);
  need("cuptiSubscribe", &call->subscribe);
  need("cuptiUnsubscribe", &call->unsubscribe);
  need("cuptiActivityRegisterCallbacks", &call->register_callbacks);
  need("cuptiActivityEnable", &call->enable);
  need("cuptiActivityDisable", &call->disable);
  need("cuptiActivityFlushAll", &call->flush_all);
  need("cuptiActivityGetNextRecord", &call->get_next_record);
  need("cuptiActivityGetNumDroppedRecords", &call->get_dropped);
  need("cuptiActivityPushExternalCorrelationId", &call->push_external);
  need("cuptiActivityPopExternalCorrelationId", &call->pop_external);
  return missing;
}

/// Path of the loaded object that holds the symbol: the loader may have found "libcupti.so" anywhere.
std::string path_of(const void* symbol, const std::string& fallback) {
  Dl_info info{};
  return dladdr(symbol, &info) != 0 && info.dli_fname ? info.dli_fname : fallback;
}

std::vector<std::string> loaded_objects() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        if (info->dlpi_name && *info->dlpi_name)
          static_cast<std::vector<std::string>*>(out)->push_back(info->dlpi_name);
        return 0;
      },
      &paths);
  return paths;
}

/// Only with a driver (library.h). One that comes later, which tests do, is found by the next who loads it.
void ask_version(Library* library) {
  if (library->version == 0 && driver_problem().empty()) library->call.get_version(&library->version);
}

bool is_cupti(const fs::path& path) { return path.filename().string().starts_with("libcupti.so"); }

void add_cupti_files(const fs::path& folder, std::vector<std::string>* paths) {
  std::error_code ignored;  // a folder that is not there has no files
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (is_cupti(entry.path())) found.push_back(entry.path());
  }
  std::sort(found.rbegin(), found.rend());  // libcupti.so.13 before libcupti.so
  paths->insert(paths->end(), found.begin(), found.end());
}

/// NVIDIA's wheels lie beside torch's: <site-packages>/nvidia/{cu13,cuda_cupti}/lib.
void add_wheels(const std::vector<std::string>& loaded, std::vector<std::string>* paths) {
  for (const std::string& object : loaded) {
    if (fs::path(object).filename() != "libc10.so") continue;
    std::error_code ignored;
    for (const auto& entry :
         fs::directory_iterator(fs::path(object).parent_path() / "../../nvidia", ignored)) {
      add_cupti_files(entry.path() / "lib", paths);
    }
  }
}

std::vector<std::string> candidates() {
  std::vector<std::string> paths;
  if (const char* file = std::getenv("OSTINATO_CUPTI"); file && *file) return {file};
  const std::vector<std::string> loaded = loaded_objects();
  std::copy_if(loaded.begin(), loaded.end(), std::back_inserter(paths), is_cupti);
  add_wheels(loaded, &paths);
  for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8", "libcupti.so"})
    paths.emplace_back(name);
  const char* home = std::getenv("CUDA_HOME");
  const fs::path toolkit = home && *home ? home : "/usr/local/cuda";
  add_cupti_files(toolkit / "lib64", &paths);
  add_cupti_files(toolkit / "extras/CUPTI/lib64", &paths);
  return paths;
}

}  // namespace

std::string Functions::text(abi::Result result) const {
  const char* text = nullptr;
  if (get_result_string(result, &text) != abi::kSuccess || !text)
    return "CUPTI result " + std::to_string(result);
  return text;
}

std::string driver_problem() {
  const char* driver = "libcuda.so.1";
  void* handle = dlopen(driver, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return "no NVIDIA driver on this machine (libcuda.so.1 cannot be loaded)";
  dlclose(handle);
  return "";
}

std::string Library::unusable() const {
  if (version == 0) {
    if (std::string problem = driver_problem(); !problem.empty()) return problem;
    return "reports version 0, so it could not start";
  }
  if (version < kOldestVersion) {
    return "CUPTI version " + std::to_string(version) + ", older than " + std::to_string(kOldestVersion) +
           " (CUDA 11.8)";
  }
  return "";
}

const Library* load_library(const std::string& path, std::string* problem) {
  static std::mutex mutex;
  // See above: never unloaded.
  static auto* const libraries = new std::map<std::string, std::unique_ptr<Library>>;
  const std::scoped_lock lock(mutex);
  if (const auto known = libraries->find(path); known != libraries->end()) {
    ask_version(known->second.get());
    return known->second.get();
  }
  const bool shared = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_NOW) != nullptr;
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* error = dlerror();
    *problem = error ? error : path + " cannot be loaded";
    return nullptr;
  }
  auto library = std::make_unique<Library>();
  library->shared = shared;
  if (const char* missing = bind_all(handle, &library->call)) {
    *problem = path + " has no function " + missing;
    dlclose(handle);
    return nullptr;
  }
  library->path = path_of(reinterpret_cast<const void*>(library->call.get_version), path);
  ask_version(library.get());
  return (libraries->insert_or_assign(path, std::move(library)).first)->second.get();
}

const Library* find_library(std::string* problem) {
  const std::vector<std::string> paths = candidates();
  for (const std::string& path : paths) {
    if (const Library* library = load_library(path, problem)) return library;
  }
  if (paths.size() > 1) {  // the last file's own error would point at one place of many
    *problem =
        "libcupti was not found: not loaded by torch, not in the NVIDIA wheels beside it, not on the "
        "loader's path, not under CUDA_HOME or /usr/local/cuda (a CUDA build of torch brings one; "
        "$OSTINATO_CUPTI names a file)";
  }
  return nullptr;
}

}  // namespace ostinato::cupti
