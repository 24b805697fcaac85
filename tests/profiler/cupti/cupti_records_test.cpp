// SPDX-License-Identifier: Apache-2.0
// Reading of buffers. The records have the sizes and offsets of two CUDA releases (standin/standin.h).

#include "profiler/cupti/records.h"

#include <cstring>
#include <vector>

#include "tests/profiler/cupti/support.h"

namespace ostinato::cupti {
namespace {

class CuptiRecords : public WithStandIn {
 protected:
  /// Appends a record of `size` bytes, all 0 but its kind.
  std::size_t append(std::uint32_t kind, std::size_t size) {
    const std::size_t offset = buffer_.size();
    buffer_.resize(offset + size);
    put(offset, kind);
    return offset;
  }

  template <typename T>
  void put(std::size_t offset, T value) {
    std::memcpy(buffer_.data() + offset, &value, sizeof value);
  }

  void append_kernel(std::size_t size, std::uint64_t start, std::uint64_t end, std::uint32_t correlation) {
    const std::size_t at = append(10, size);
    put(at + 16, start);
    put(at + 24, end);
    put(at + 92, correlation);
  }

  /// Reads a copy that ends exactly where the valid bytes do, so that the address sanitizer sees a read
  /// beyond.
  Records read(std::size_t cut = 0, std::size_t limit = 1000) {
    std::vector<std::uint8_t> exact(buffer_.begin(), buffer_.end() - static_cast<std::ptrdiff_t>(cut));
    exact.shrink_to_fit();
    RecordReader reader(library().call, limit);
    reader.read(exact.data(), exact.size());
    return reader.records();
  }

  std::vector<std::uint8_t> buffer_;
};

TEST_F(CuptiRecords, KernelsOfBothReleases) {
  for (const auto& [version, size] : {std::pair{18u, 200u}, std::pair{130001u, 216u}}) {
    cupti.version = version;
    buffer_.clear();
    append_kernel(size, 100, 170, 5);
    append_kernel(size, 200, 201, 6);
    const Records records = read();
    ASSERT_EQ(records.activities.size(), 2u) << version;
    EXPECT_EQ(records.activities[0].start, 100);
    EXPECT_EQ(records.activities[0].end, 170);
    EXPECT_EQ(records.activities[0].correlation, 5u);
    EXPECT_EQ(records.activities[1].correlation, 6u);
    EXPECT_EQ(records.cut_buffers, 0);
    EXPECT_EQ(records.seen, 2);
  }
}

TEST_F(CuptiRecords, ABufferCutInsideItsLastRecord) {
  append_kernel(216, 100, 170, 5);
  append_kernel(216, 200, 201, 6);
  for (std::size_t cut : {1, 8, 100, 215}) {
    const Records records = read(cut);
    EXPECT_EQ(records.activities.size(), 1u) << cut;
    EXPECT_EQ(records.cut_buffers, 1) << cut;
  }
  EXPECT_EQ(read(216).cut_buffers, 0);
  EXPECT_EQ(read(300).cut_buffers, 1);  // inside its first
  EXPECT_EQ(read(431).cut_buffers, 1);  // inside the first's kind
  EXPECT_EQ(read(432).cut_buffers, 0);  // empty
}

TEST_F(CuptiRecords, ZerosAfterTheLastRecordAreNoRecord) {
  append_kernel(216, 100, 170, 5);
  append(0, 40);
  const Records records = read();
  EXPECT_EQ(records.activities.size(), 1u);
  EXPECT_EQ(records.cut_buffers, 0);
  EXPECT_EQ(read(3).cut_buffers, 0);
}

TEST_F(CuptiRecords, ABrokenRecordLosesTheRestOfItsBuffer) {
  append_kernel(216, 100, 170, 5);
  append(4711, 64);
  append_kernel(216, 200, 201, 6);
  const Records records = read();
  EXPECT_EQ(records.activities.size(), 1u);
  EXPECT_EQ(records.cut_buffers, 1);
}

TEST_F(CuptiRecords, KindsThatWereNotAskedForAreCountedAndPassedOver) {
  append(12, 56);  // MARKER: another tool of the process turned it on
  append_kernel(216, 100, 170, 5);
  const Records records = read();
  EXPECT_EQ(records.unknown, 1);
  EXPECT_EQ(records.activities.size(), 1u);
  EXPECT_EQ(records.cut_buffers, 0);
}

TEST_F(CuptiRecords, OnlyOurExternalIdsAreTaken) {
  for (std::uint32_t external_kind : {3u, 4u, 5u}) {  // CUSTOM0 and CUSTOM1 are torch's
    const std::size_t at = append(39, 24);
    put(at + 4, external_kind);
    put(at + 8, std::uint64_t{1000} + external_kind);
    put(at + 16, external_kind);
  }
  const Records records = read();
  ASSERT_EQ(records.links.size(), 1u);
  EXPECT_EQ(records.links[0].external_id, 1005u);
  EXPECT_EQ(records.links[0].correlation, 5u);
  EXPECT_EQ(records.unknown, 0);
}

TEST_F(CuptiRecords, OnlySuccessfulLaunchesAreExpectedToHaveKernels) {
  auto api = [&](std::uint32_t kind, std::uint32_t function, std::uint32_t result) {
    const std::size_t at = append(kind, 40);
    put(at + 4, function);
    put(at + 36, result);
  };
  api(5, 211, 0);  // cudaLaunchKernel
  api(5, 211, 2);  // out of memory
  api(5, 307, 0);  // as a driver call this number is cuLaunchKernel
  api(4, 307, 0);
  const Records records = read();
  ASSERT_EQ(records.launches.size(), 2u);
  EXPECT_FALSE(records.launches[0].driver);
  EXPECT_TRUE(records.launches[1].driver);
}

TEST_F(CuptiRecords, CopiesAndMemsets) {
  struct Case {
    std::uint32_t kind;
    std::size_t size, correlation;
    ActivityKind activity;
  };
  const Case cases[] = {{1, 96, 44, ActivityKind::memcpy},
                        {22, 96, 60, ActivityKind::memcpy},
                        {2, 88, 44, ActivityKind::memset}};
  for (const Case& c : cases) {
    buffer_.clear();
    const std::size_t at = append(c.kind, c.size);
    put(at + 16, std::uint64_t{40});
    put(at + 24, std::uint64_t{45});
    put(at + c.correlation, std::uint32_t{9});
    const Records records = read();
    ASSERT_EQ(records.activities.size(), 1u) << c.kind;
    EXPECT_EQ(records.activities[0].end - records.activities[0].start, 5) << c.kind;
    EXPECT_EQ(records.activities[0].correlation, 9u) << c.kind;
    EXPECT_EQ(records.activities[0].kind, c.activity) << c.kind;
  }
}

TEST_F(CuptiRecords, NoMoreThanTheLimitIsKept) {
  for (std::uint32_t i = 0; i < 10; ++i) append_kernel(216, 100, 170, i);
  const Records records = read(0, 4);
  EXPECT_EQ(records.activities.size(), 4u);
  EXPECT_EQ(records.beyond_limit, 6);
  EXPECT_EQ(records.seen, 10);
}

}  // namespace
}  // namespace ostinato::cupti
