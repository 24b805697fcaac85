// SPDX-License-Identifier: Apache-2.0
#pragma once
// From records to device time per range (operator, layer, kind, micro-batch), and what was lost on the way.
//
// A launch and what the device did for it share a correlation id; an external correlation record ties that id
// to the range that was open on the launching thread. Times add up what the device was busy with: where two
// streams work at the same time, both count.

#include <cstdint>
#include <vector>

#include "profiler/cupti/buffers.h"
#include "profiler/cupti/range.h"
#include "profiler/cupti/records.h"
#include "search/profile/profile.h"

namespace ostinato::cupti {

struct DeviceTime {
  Range range;
  Nanoseconds kernel = 0;  ///< sums of durations
  Nanoseconds memcpy = 0;
  Nanoseconds memset = 0;
  std::int64_t activities = 0;  ///< kernels, copies and memsets
  Nanoseconds start = 0;        ///< of the first, on CUPTI's clock
  Nanoseconds end = 0;          ///< of the last

  Nanoseconds total() const { return kernel + memcpy + memset; }

  /// Adds what the device did for another range; `range` stays.
  void add(const DeviceTime& other);
};

/// What was lost or cannot be told. Nothing was, if all but the first four are 0.
struct Losses {
  std::int64_t ranges = 0;            ///< opened by push()
  std::int64_t records = 0;           ///< seen, of any kind
  std::int64_t launches = 0;          ///< API calls that launched a kernel, counted from the API records
  std::int64_t launches_matched = 0;  ///< of those, with a record of the kernel
  std::int64_t dropped = 0;           ///< records that CUPTI had no room for, in its own count
  std::int64_t out_of_range = 0;      ///< kernels, copies and memsets outside every range
  /// Kernels, copies and memsets without times: unfinished, or no room on the device.
  std::int64_t untimed = 0;
  std::int64_t unknown = 0;       ///< records of a kind that was not asked for
  std::int64_t cut_buffers = 0;   ///< that end inside a record
  std::int64_t beyond_limit = 0;  ///< records read but not kept
  std::int64_t call_errors = 0;   ///< pushes, pops and flushes that CUPTI refused
  BufferCounts buffers;

  /// Of several sessions.
  Losses& operator+=(const Losses& other);
};

struct DeviceTimes {
  std::vector<DeviceTime> ranges;  ///< sorted by range
  Losses losses;
};

/// O(n log n) in the records. Fills in what the records tell of the losses.
DeviceTimes attribute(const Records& records);

/// For the profile: `expected` and `seen` are launches. Complete only where nothing was lost; `reason` names
/// each loss.
Completeness completeness(const Losses& losses);

}  // namespace ostinato::cupti
