// Ranges arrive at a tool: an injection library that is linked into this test counts them.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

// NVTX looks for this symbol, and defines it weakly unless told that it is there.
extern "C" {
extern int (*InitializeInjectionNvtx2_fnptr)(const void* (*)(std::uint32_t));
}
#define NVTX_STATIC_INJECTION_IMPL
#include "profiler/nvtx_range.h"

namespace {

std::vector<std::string> open_ranges, closed_ranges;

int push(const char* name) {
  open_ranges.emplace_back(name);
  return static_cast<int>(open_ranges.size()) - 1;
}

int pop() {
  closed_ranges.push_back(open_ranges.back());
  open_ranges.pop_back();
  return static_cast<int>(open_ranges.size());
}

template <typename Function>
void set(NvtxFunctionTable table, unsigned int id, Function* function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

/// What NVTX calls with the first range: it asks for the table of core functions, and enters itself.
int initialize(NvtxGetExportTableFunc_t get_table) {
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

}  // namespace

extern "C" {
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = &initialize;
}

namespace ostinato {
namespace {

TEST(NvtxRange, ArrivesAtATool) {
  open_ranges.clear();
  closed_ranges.clear();
  {
    NvtxRange outer("s1 F 3");
    { NvtxRange inner("3:Block F 0"); }
    EXPECT_EQ(open_ranges, std::vector<std::string>{"s1 F 3"});
  }
  EXPECT_EQ(closed_ranges, (std::vector<std::string>{"3:Block F 0", "s1 F 3"}));
}

TEST(NvtxRange, EndsWithAnException) {
  open_ranges.clear();
  try {
    NvtxRange range("raises");
    throw 1;
  } catch (int) {
  }
  EXPECT_TRUE(open_ranges.empty());
}

}  // namespace
}  // namespace ostinato
