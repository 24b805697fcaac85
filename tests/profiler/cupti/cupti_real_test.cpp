// SPDX-License-Identifier: Apache-2.0
// Against the real libcupti where this machine has one, with or without a GPU: without a driver it refuses to
// record, but still walks buffers, so that our reading is checked with its own record sizes.

#include <cstring>
#include <vector>

#include "tests/profiler/cupti/support.h"

namespace ostinato::cupti {
namespace {

const Library* real_library(std::string* problem) {
  const Library* library = find_library(problem);
  if (!library) return nullptr;
  void* handle = dlopen(library->path.c_str(), RTLD_NOW);
  if (handle && dlsym(handle, "cupti_stand_in")) {
    *problem = "another case of this process has loaded the stand-in as libcupti";
    return nullptr;
  }
  return library;
}

TEST(CuptiReal, WalksRecordsOfEveryKindWithTheLibrarysOwnSizes) {
  std::string problem;
  const Library* library = real_library(&problem);
  if (!library) GTEST_SKIP() << problem;
  // How long the library's records are: the fewest valid bytes in which it finds one.
  auto size_of = [&](std::uint32_t kind) {
    std::vector<std::uint64_t> buffer(256);
    std::memcpy(buffer.data(), &kind, sizeof kind);
    for (std::size_t size = 8; size <= 2048; size += 8) {
      void* record = nullptr;
      if (library->call.get_next_record(reinterpret_cast<std::uint8_t*>(buffer.data()), size, &record) ==
          abi::kSuccess) {
        return size;
      }
    }
    return std::size_t{0};
  };
  std::vector<std::uint8_t> bytes;
  const std::uint32_t kinds[] = {39, 5, 10, 1, 22, 2, 4, 10};
  for (std::uint32_t kind : kinds) {
    const std::size_t at = bytes.size(), size = size_of(kind);
    ASSERT_GT(size, 0u) << "kind " << kind;
    bytes.resize(at + size);
    std::memcpy(bytes.data() + at, &kind, sizeof kind);
  }
  std::vector<std::uint64_t> aligned((bytes.size() + 7) / 8);
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  RecordReader whole(library->call, 100);
  whole.read(reinterpret_cast<std::uint8_t*>(aligned.data()), bytes.size());
  EXPECT_EQ(whole.records().seen, std::ssize(kinds));
  EXPECT_EQ(whole.records().activities.size(), 5u);
  EXPECT_EQ(whole.records().unknown, 0);
  EXPECT_EQ(whole.records().cut_buffers, 0);

  aligned.resize(aligned.size() + 8);
  RecordReader padded(library->call, 100);
  padded.read(reinterpret_cast<std::uint8_t*>(aligned.data()), bytes.size() + 64);
  EXPECT_EQ(padded.records().seen, std::ssize(kinds));
  EXPECT_EQ(padded.records().cut_buffers, 0);

  RecordReader cut(library->call, 100);
  cut.read(reinterpret_cast<std::uint8_t*>(aligned.data()), bytes.size() - 8);
  EXPECT_EQ(cut.records().seen, std::ssize(kinds) - 1);
  EXPECT_EQ(cut.records().cut_buffers, 1);
}

TEST(CuptiReal, WithoutADriverItIsNotAsked) {
  std::string problem;
  const Library* library = real_library(&problem);
  if (!library) GTEST_SKIP() << problem;
  if (driver_problem().empty()) GTEST_SKIP() << "this machine has a driver";
  EXPECT_EQ(library->version, 0u);
  try {
    Collector collector(*library, {});
    ADD_FAILURE() << "a session began without a driver";
  } catch (const Unavailable& error) {
    EXPECT_EQ(error.what(), library->path + ": " + driver_problem());
  }
}

}  // namespace
}  // namespace ostinato::cupti
