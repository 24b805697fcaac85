// SPDX-License-Identifier: Apache-2.0
#pragma once
// An NVTX tool inside a test: notes the names of ranges. Include it in one file of a test program, first of
// all that include NVTX.
//
//   ostinato::testing::ranges.clear();  { NvtxRange range("s1 F 3"); }   // ranges.closed == {"s1 F 3"}

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

// NVTX looks for this symbol, and defines it weakly unless told that it is there.
extern "C" {
extern int (*InitializeInjectionNvtx2_fnptr)(const void* (*)(std::uint32_t));
}
#define NVTX_STATIC_INJECTION_IMPL
#include "profiler/nvtx/nvtx_range.h"

namespace ostinato::testing {

/// Of all threads; each thread's ranges nest by themselves.
struct Ranges {
  std::vector<std::string> closed;  ///< in the order in which they ended

  void clear() {
    const std::lock_guard lock(mutex);
    closed.clear();
  }

  std::mutex mutex;
};
inline Ranges ranges;
inline thread_local std::vector<std::string> open_ranges;

inline int push(const char* name) {
  open_ranges.emplace_back(name);
  return static_cast<int>(open_ranges.size()) - 1;
}

inline int pop() {
  const std::lock_guard lock(ranges.mutex);
  ranges.closed.push_back(open_ranges.back());
  open_ranges.pop_back();
  return static_cast<int>(open_ranges.size());
}

template <typename Function>
void set(NvtxFunctionTable table, unsigned int id, Function* function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

/// What NVTX calls with the first range: it asks for the table of core functions, and enters itself.
inline int initialize(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0) {
    return 0;
  }
  set(table, NVTX_CBID_CORE_RangePushA, &push);
  set(table, NVTX_CBID_CORE_RangePop, &pop);
  return 1;
}

}  // namespace ostinato::testing

extern "C" {
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = &ostinato::testing::initialize;
}
