// SPDX-License-Identifier: Apache-2.0
#pragma once
// What buffers of CUPTI say, kept short: one entry per kernel, copy, memset, launch and external id.
//
//   RecordReader reader(library.call, 1 << 20);
//   reader.read(buffer.data.get(), buffer.valid);
//   attribute(reader.records());               // attribution.h
//
// Records of one launch may lie in different buffers and in any order (a kernel's comes when it ends), so
// nothing is joined here. A buffer is walked with CUPTI's own cuptiActivityGetNextRecord and read within its
// valid bytes only.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "profiler/cupti/library.h"
#include "search/placement/placement.h"

namespace ostinato::cupti {

enum class ActivityKind : std::uint8_t { kernel, memcpy, memset };

/// Something that the device did.
struct Activity {
  Nanoseconds start = 0;  ///< CUPTI's clock; 0 or above `end`: the device took no time for it
  Nanoseconds end = 0;
  std::uint32_t correlation = 0;  ///< of the API call that asked for it
  ActivityKind kind = ActivityKind::kernel;
};

/// The external id (range.h) that was on top of the thread's stack at an API call.
struct Link {
  std::uint32_t correlation = 0;
  std::uint64_t external_id = 0;
};

/// An API call that launched a kernel.
struct Launch {
  std::uint32_t correlation = 0;
  std::uint32_t thread = 0;
  Nanoseconds start = 0;
  Nanoseconds end = 0;
  bool driver = false;  ///< through the driver API, perhaps from inside a runtime call
};

struct Records {
  std::vector<Activity> activities;
  std::vector<Link> links;
  std::vector<Launch> launches;
  std::int64_t seen = 0;     ///< records of any kind
  std::int64_t unknown = 0;  ///< of a kind that was not asked for, or shorter than we know them
  /// Ended inside a record, or held a broken one: the rest of the buffer is lost.
  std::int64_t cut_buffers = 0;
  std::int64_t beyond_limit = 0;  ///< not kept, because `limit` entries are
};

class RecordReader {
 public:
  /// Keeps at most `limit` entries (about 32 bytes each).
  RecordReader(const Functions& call, std::size_t limit) : call_(call), limit_(limit) {}

  /// O(records). `data` is aligned to 8 bytes, as CUPTI asks.
  void read(std::uint8_t* data, std::size_t valid);

  const Records& records() const { return records_; }

 private:
  void read_record(const std::uint8_t* record, std::size_t left);
  void read_api(const std::uint8_t* record, std::size_t left, bool driver);
  void read_external(const std::uint8_t* record, std::size_t left);
  std::size_t record_size(std::uint8_t* record, std::size_t left);
  template <typename Head>
  bool copy_head(const std::uint8_t* record, std::size_t left, Head* head);
  template <typename Head>
  void read_activity(const std::uint8_t* record, std::size_t left, ActivityKind kind);
  template <typename Entry>
  void keep(std::vector<Entry>* entries, const Entry& entry);

  Functions call_;
  std::size_t limit_;
  Records records_;
  std::array<std::size_t, 64> sizes_{};  ///< of records by kind, once known; 0: not yet
};

}  // namespace ostinato::cupti
