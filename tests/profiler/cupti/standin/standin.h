// SPDX-License-Identifier: Apache-2.0
#pragma once
// A stand-in for libcupti: a shared library with the functions that the collector loads, filled by the test.
//
// It shows plumbing only: that buffers, records, ids and errors go the right way through our code. It shows
// nothing about CUPTI itself. Its records have the sizes of CUDA 11.8 or 13.0 and are written field by field
// at the offsets of NVIDIA's documentation, apart from profiler/cupti/abi.h, so that a wrong offset there is
// seen.
//
//   StandIn& cupti = stand_in();
//   cupti.reset();
//   collector.push(range);
//   cupti.launch({.duration = 50});       // as cudaLaunchKernel would
//   collector.pop();
//   cupti.run_device();                   // the kernel ends, and its record is written

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

enum class Work { kernel, memcpy, memcpy_peer, memset };

struct Call {
  Work work = Work::kernel;
  std::uint64_t duration = 100;  ///< nanoseconds on the device
  bool driver = false;           ///< cuLaunchKernel instead of cudaLaunchKernel
  bool nested_driver = false;    ///< the runtime's own driver call is recorded too
  bool fails = false;            ///< returns an error: no work
  bool loses_kernel = false;     ///< the device's record is lost, and counted nowhere
};

/// How it answers, and what it saw.
struct StandInState {
  std::uint32_t version = 130001;         ///< 0: could not start
  std::string holder;                     ///< who has subscribed already; "": nobody
  std::set<std::uint32_t> refused_kinds;  ///< cuptiActivityEnable fails
  bool returns_buffers = true;            ///< cuptiActivityFlushAll hands buffers over
  std::size_t cut_bytes = 0;              ///< taken off the end of the next buffer that is handed over
  std::size_t drop_next = 0;              ///< so many records find no room

  std::size_t requests = 0;  ///< of buffers
  std::size_t flushes = 0;
  std::set<std::uint32_t> enabled;
  bool subscribed = false;
  std::string subscriber_name;
  bool asked_dropped_in_callback = false;
};

class StandIn : public StandInState {
 public:
  virtual ~StandIn() = default;
  virtual void reset() = 0;
  /// An API call on this thread, with its external correlations. Returns its correlation id.
  virtual std::uint32_t call(const Call& call) = 0;
  /// What was asked for ends; `reversed`: in the opposite order.
  virtual void run_device(bool reversed = false) = 0;
  /// A record of any kind and size, zero but for its kind and an external correlation's fields.
  virtual void emit(std::uint32_t kind, std::size_t size) = 0;
  /// Hands the current buffer over, full or not.
  virtual void hand_over() = 0;
  /// Hands over a buffer that it never asked for.
  virtual void hand_over_foreign() = 0;
};

/// Exported by the library; what follows the first is for callers that know no C++ (Python's ctypes).
extern "C" {
StandIn* cupti_stand_in();
void cupti_stand_in_reset();
void cupti_stand_in_launch(std::uint64_t duration);
void cupti_stand_in_run_device();
void cupti_stand_in_drop(std::size_t records);
void cupti_stand_in_hold(const char* holder);
}
