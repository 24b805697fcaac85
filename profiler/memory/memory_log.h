// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every allocation and free while it runs, in the order in which the allocator counted them: what a memory
// timeline is made of (ostinato/profile/measure/owners.py).
//
//   MemoryLog log({.events = 1 << 18});
//   log.start();   ... run a micro-batch ...   log.stop();
//   for (const MemoryEvent& event : log.events()) ...      // the largest `live` is the allocator's own peak
//
// The CPU's events come from CountingAllocator, which must be installed; a device's from what its caching
// allocator reports to torch (device/allocation_hook.h, under a hook). Both go through logged(), which costs
// one load where no log runs. Room for the events is made by the constructor: what does not fit is counted,
// never silently lost. While a log runs, counting and noting are one step under a lock, so that events of
// several threads stand in the order in which `live` has changed.
//
// One log runs at a time; start() throws std::logic_error otherwise.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "search/placement/placement.h"

namespace ostinato {

struct MemoryEvent {
  Nanoseconds at = 0;          ///< steady clock
  std::uintptr_t address = 0;  ///< of the block
  Bytes change = 0;            ///< > 0: allocated, < 0: freed
  Bytes live = 0;              ///< by the allocator's own count, with this change
};

class MemoryLog {
 public:
  struct Options {
    std::size_t events = std::size_t{1} << 18;  ///< 32 bytes each
  };

  explicit MemoryLog(const Options& options);
  ~MemoryLog();
  MemoryLog(const MemoryLog&) = delete;
  MemoryLog& operator=(const MemoryLog&) = delete;

  /// Forgets what it has.
  void start();
  void stop();

  /// Call these when stopped.
  std::vector<MemoryEvent> events() const;
  std::int64_t dropped() const { return dropped_; }

 private:
  template <typename Count>
  friend Bytes logged(const void* address, Bytes change, Count count);

  void append(const void* address, Bytes change, Bytes live);

  static std::atomic<MemoryLog*> running_;
  static std::mutex mutex_;

  std::vector<MemoryEvent> events_;  ///< full size from the start
  std::size_t used_ = 0;
  std::int64_t dropped_ = 0;
};

/// For allocators: calls `count()`, which counts the change and returns what is live then, and notes it in
/// the log that runs, if any. Returns what count() did.
template <typename Count>
Bytes logged(const void* address, Bytes change, Count count) {
  if (MemoryLog::running_.load(std::memory_order_relaxed) == nullptr) return count();
  const std::lock_guard lock(MemoryLog::mutex_);
  const Bytes live = count();
  if (MemoryLog* log = MemoryLog::running_.load(std::memory_order_relaxed))
    log->append(address, change, live);
  return live;
}

}  // namespace ostinato
