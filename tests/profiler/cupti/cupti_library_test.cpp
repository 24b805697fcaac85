// SPDX-License-Identifier: Apache-2.0
// How libcupti is found and judged. The stand-in shows plumbing only (standin/standin.h).

#include "profiler/cupti/library.h"

#include <cstdlib>
#include <filesystem>

#include "profiler/cupti/cupti_status.h"
#include "tests/profiler/cupti/support.h"

namespace ostinato::cupti {
namespace {

/// A second library like the stand-in, under another name and with a state of its own.
struct LoadedCopy {
  explicit LoadedCopy(const std::string& file)
      : path(std::filesystem::path(testing::TempDir()) / "cupti_copy" / file) {
    std::filesystem::create_directories(path.parent_path());
    std::filesystem::copy_file(CUPTI_STANDIN, path, std::filesystem::copy_options::overwrite_existing);
    handle = dlopen(path.c_str(), RTLD_NOW);
    if (!handle) throw std::runtime_error(dlerror());
  }
  ~LoadedCopy() { std::filesystem::remove(path); }

  StandIn& controls() const { return *reinterpret_cast<StandIn* (*)()>(dlsym(handle, "cupti_stand_in"))(); }

  std::filesystem::path path;
  void* handle = nullptr;
};

/// $OSTINATO_CUPTI for one case.
class CuptiLibrary : public WithStandIn {
 protected:
  ~CuptiLibrary() override { unsetenv("OSTINATO_CUPTI"); }
  static void name(const char* file) { setenv("OSTINATO_CUPTI", file, 1); }
};

TEST_F(CuptiLibrary, TheNamedFileIsUsed) {
  const Driver driver;
  name(CUPTI_STANDIN);
  const CuptiStatus status = cupti_status();
  EXPECT_TRUE(status.usable) << status.detail;
  EXPECT_EQ(status.version, 130001u);
  EXPECT_EQ(status.library, CUPTI_STANDIN);
  EXPECT_NE(status.detail.find("version 130001"), std::string::npos) << status.detail;
}

TEST_F(CuptiLibrary, WithoutADriverNothingOfItIsCalled) {
  if (driver_problem().empty()) GTEST_SKIP() << "this machine has a driver";
  const LoadedCopy copy("libcupti_without_driver.so");  // its cuptiGetVersion ends the process then
  name(copy.path.c_str());
  const CuptiStatus status = cupti_status();
  EXPECT_FALSE(status.usable);
  EXPECT_EQ(status.version, 0u);
  EXPECT_NE(status.detail.find("no NVIDIA driver"), std::string::npos) << status.detail;
  EXPECT_THROW(Collector(CollectorOptions{}), Unavailable);
}

TEST_F(CuptiLibrary, NothingElseIsTriedWhereTheNamedFileIsMissing) {
  name("/nowhere/libcupti.so.13");
  const CuptiStatus status = cupti_status();
  EXPECT_FALSE(status.usable);
  EXPECT_EQ(status.library, "");
  EXPECT_NE(status.detail.find("/nowhere/libcupti.so.13"), std::string::npos) << status.detail;
}

TEST_F(CuptiLibrary, Version0IsUnusable) {
  const Driver driver;
  const LoadedCopy copy("libcupti_not_started.so");
  copy.controls().version = 0;
  name(copy.path.c_str());
  const CuptiStatus status = cupti_status();
  EXPECT_FALSE(status.usable);
  EXPECT_EQ(status.version, 0u);
  EXPECT_NE(status.detail.find("reports version 0"), std::string::npos) << status.detail;
  EXPECT_THROW(Collector(CollectorOptions{}), Unavailable);
}

TEST_F(CuptiLibrary, AVersionWhoseRecordsAreNotKnownIsRefused) {
  Library old = library();
  old.version = 17;  // CUDA 11.7
  EXPECT_NE(old.unusable().find("older than 18"), std::string::npos) << old.unusable();
  EXPECT_THROW(Collector(old, {}), Unavailable);
}

TEST_F(CuptiLibrary, ALibraryWithoutAFunctionIsNamed) {
  std::string problem;
  EXPECT_EQ(load_library("libm.so.6", &problem), nullptr);
  EXPECT_EQ(problem, "libm.so.6 has no function cuptiGetVersion");
}

TEST_F(CuptiLibrary, TheOneThatTheProcessHasLoadedIsShared) {
  const Driver driver;
  const LoadedCopy torchs("libcupti.so.13");
  std::string problem;
  const Library* found = find_library(&problem);
  ASSERT_NE(found, nullptr) << problem;
  EXPECT_EQ(found->path, torchs.path);
  EXPECT_TRUE(found->shared);
  EXPECT_EQ(reinterpret_cast<void*>(found->call.enable), dlsym(torchs.handle, "cuptiActivityEnable"));
  EXPECT_NE(cupti_status().detail.find("as torch loaded it"), std::string::npos);
}

TEST_F(CuptiLibrary, ResultsHaveCuptisNames) {
  EXPECT_EQ(library().call.text(35), "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES");
  EXPECT_EQ(library().call.text(4711), "CUPTI result 4711");
}

}  // namespace
}  // namespace ostinato::cupti
