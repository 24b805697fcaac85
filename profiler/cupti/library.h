// SPDX-License-Identifier: Apache-2.0
#pragma once
// libcupti, loaded at run time. Every call into it goes through one of these pointers, wrapped once and
// without logic, so that the tests can put a stand-in in its place.
//
//   std::string problem;
//   if (const Library* cupti = find_library(&problem)) cupti->call.flush_all(0);
//
// Where it is looked for, the first that loads wins:
//   1. $OSTINATO_CUPTI, a file: for odd installations (nothing else is tried then);
//   2. what the process has already loaded: a CUDA torch brings one, and a second copy would see nothing;
//   3. the wheels beside the loaded torch: ../../nvidia/*/lib;
//   4. the dynamic loader's own path (LD_LIBRARY_PATH, ld.so.cache);
//   5. $CUDA_HOME or /usr/local/cuda: lib64, extras/CUPTI/lib64.
// It is never unloaded: CUPTI keeps threads and callbacks in the process.

#include <cstdint>
#include <string>

#include "profiler/cupti/abi.h"

namespace ostinato::cupti {

/// CUPTI's functions. All are required but subscribe_v2, which names the holder and is not in older
/// libraries.
struct Functions {
  abi::Result (*get_version)(std::uint32_t* version) = nullptr;
  abi::Result (*get_result_string)(abi::Result, const char** text) = nullptr;
  abi::Result (*subscribe)(void** subscriber, abi::CallbackFunction, void* user) = nullptr;
  abi::Result (*subscribe_v2)(void** subscriber, abi::CallbackFunction, void* user,
                              abi::SubscriberParams*) = nullptr;
  abi::Result (*unsubscribe)(void* subscriber) = nullptr;
  abi::Result (*register_callbacks)(abi::BufferRequested, abi::BufferCompleted) = nullptr;
  abi::Result (*enable)(std::uint32_t kind) = nullptr;
  abi::Result (*disable)(std::uint32_t kind) = nullptr;
  abi::Result (*flush_all)(std::uint32_t flag) = nullptr;
  abi::Result (*get_next_record)(std::uint8_t* buffer, std::size_t valid, void** record) = nullptr;
  abi::Result (*get_dropped)(void* context, std::uint32_t stream, std::size_t* dropped) = nullptr;
  abi::Result (*push_external)(std::uint32_t kind, std::uint64_t id) = nullptr;
  abi::Result (*pop_external)(std::uint32_t kind, std::uint64_t* last) = nullptr;

  /// CUPTI's own text for a result, "CUPTI_ERROR_UNKNOWN" say; the number where it has none.
  std::string text(abi::Result result) const;
};

/// Oldest version whose record layouts abi.h describes: 18, CUDA 11.8.
inline constexpr std::uint32_t kOldestVersion = 18;

struct Library {
  Functions call;
  std::string path;           ///< of the file, as the loader knows it
  std::uint32_t version = 0;  ///< cuptiGetVersion; 0: unusable, or not asked because there is no driver
  bool shared = false;        ///< it was already loaded, by torch for instance

  /// Empty where the version can be used, else why not: no driver, or a version that cannot.
  std::string unusable() const;
};

/// Empty where an NVIDIA driver is installed, else why CUPTI cannot work: the library itself loads without
/// one, but refuses every subscriber, and cuptiGetVersion of CUDA 13.2 calls itself until the stack is full.
/// So this is asked before anything is called. Starts no driver (cuInit would spoil a later fork).
std::string driver_problem();

/// Loads one file, and asks its version where there is a driver. nullptr and the reason in `problem` where it
/// cannot be loaded or lacks a function.
const Library* load_library(const std::string& path, std::string* problem);

/// Looks in the places above. nullptr and the reason in `problem` where none is found.
const Library* find_library(std::string* problem);

}  // namespace ostinato::cupti
