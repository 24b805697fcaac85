// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collects device times from CUPTI's activity records while a training step runs.
//
//   Collector collector({.profiler_running = torch_profile_runs ? "torch.profiler" : ""});
//   {
//     ScopedRange range(collector, {.operator_id = 7, .layer = 3, .kind = Kind::forward, .micro_batch = 0});
//     ...                                  // launches kernels
//   }
//   synchronize the devices;               // flushing does not wait for them
//   DeviceTimes times = collector.stop();
//   profile.completeness = completeness(times.losses);
//
// The first session of a process instruments every module that is loaded, for seconds: warm up inside a
// session and measure in the next one.
//
// CUPTI has one subscriber in a process before CUDA 13.3 with driver r610, and we ask for no more elsewhere:
// the constructor subscribes first, and says who holds CUPTI where that is refused (Nsight Systems and
// Compute, cuda-gdb, another profiler). torch's profiler can be idle without holding it and would replace our
// callbacks when it starts, so the caller says whether it runs. On Unavailable the caller times with device
// events.
//
// Threads: push() and pop() on any thread, paired on each, without a lock or an allocation of ours. The
// buffer callbacks run on CUPTI's threads, also for a while after stop(), and touch the process-wide
// BufferPool only. flush() and stop() belong to the thread that made the collector. Every call into CUPTI is
// made without holding a lock of ours: asking for the dropped count under the callbacks' lock can deadlock.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "profiler/cupti/attribution.h"
#include "profiler/cupti/library.h"
#include "profiler/cupti/range.h"

namespace ostinato::cupti {

/// CUPTI cannot be used now; what() says why, and who holds it.
class Unavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct CollectorOptions {
  std::string profiler_running = "";   ///< a profiler that runs in this process and will use CUPTI; "": none
  std::size_t buffer_bytes = 4 << 20;  ///< of one buffer; NVIDIA advises 1 to 10 MB
  std::size_t max_buffers = 32;        ///< bound of the pool (buffers.h says where it gives way)
  std::size_t max_records = 16 << 20;  ///< kept between start and stop, about 32 bytes each
};

class Collector {
 public:
  /// Starts collecting with the libcupti of this machine, or with `library`. Throws Unavailable.
  explicit Collector(const CollectorOptions& options);
  Collector(const Library& library, const CollectorOptions& options);

  /// Stops collecting, and drops what was not asked for.
  ~Collector();

  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  /// Opens a range on this thread: what it launches from now on belongs to `range`. Ranges nest; the
  /// innermost counts.
  void push(const Range& range) {
    pushes_.fetch_add(1, std::memory_order_relaxed);
    check(library_.call.push_external(abi::kCustom2, encode(range)));
  }

  /// Closes this thread's innermost range.
  void pop() {
    std::uint64_t last = 0;
    check(library_.call.pop_external(abi::kCustom2, &last));
  }

  /// Reads what CUPTI has finished. Call it between steps so that the pool need not grow; not while ranges
  /// are timed.
  void flush() { flush(0); }

  /// Ends the session and adds everything up. The devices must have been synchronised: what still runs has no
  /// times, and is counted. Ranges opened later are lost. A second call says the same again.
  DeviceTimes stop();

  const Library& library() const { return library_; }

 private:
  void check(abi::Result result) {
    if (result != abi::kSuccess) call_errors_.fetch_add(1, std::memory_order_relaxed);
  }
  void subscribe();
  void enable();
  void shut_down();
  void flush(std::uint32_t flag);

  const Library& library_;
  void* subscriber_ = nullptr;
  std::vector<std::uint32_t> enabled_;  ///< record kinds
  RecordReader reader_;
  bool running_ = true;
  std::int64_t dropped_ = 0;
  BufferCounts buffers_;  ///< of the session, once it has ended
  std::atomic<std::int64_t> pushes_{0};
  std::atomic<std::int64_t> call_errors_{0};
};

/// push() and pop() around a scope.
class ScopedRange {
 public:
  ScopedRange(Collector& collector, const Range& range) : collector_(collector) { collector_.push(range); }
  ~ScopedRange() { collector_.pop(); }
  ScopedRange(const ScopedRange&) = delete;
  ScopedRange& operator=(const ScopedRange&) = delete;

 private:
  Collector& collector_;
};

}  // namespace ostinato::cupti
