// SPDX-License-Identifier: Apache-2.0
// A reader under libFuzzer: OSTINATO_FUZZ_READER=plan build/fuzz/tests/fuzz_readers corpus/plan
// With OSTINATO_FUZZ_SEEDS=folder it writes the reader's seeds there, and ends.

#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "tests/fuzz/readers.h"

namespace {

const ostinato::fuzz::Reader* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* name = std::getenv("OSTINATO_FUZZ_READER");
  chosen = &ostinato::fuzz::find_reader(name == nullptr ? "" : name);
  if (const char* folder = std::getenv("OSTINATO_FUZZ_SEEDS")) {
    for (std::size_t i = 0; i < chosen->seeds.size(); ++i)
      std::ofstream(std::string(folder) + "/seed-" + std::to_string(i), std::ios::binary) << chosen->seeds[i];
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  chosen->take({reinterpret_cast<const char*>(data), size});
  return 0;
}
