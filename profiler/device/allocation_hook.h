// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bytes that the allocators of devices give to each thread. A device's caching allocator reports to whoever
// stands in the thread-local debug information, which torch hands on to the threads of a backward; the CPU's
// bytes are counted by CountingAllocator instead, and left out here. A memory log that runs notes each of
// them (memory_log.h). Takes the place that torch.profiler uses
// for memory: not both.

#include <c10/util/ThreadLocalDebugInfo.h>

#include "search/placement/placement.h"

namespace ostinato {

/// Counts from its construction to its destruction, both on the thread that starts the work.
class AllocationHook {
 public:
  AllocationHook();

 private:
  c10::DebugInfoGuard guard_;
};

/// Bytes of device memory that the calling thread has ever been given under a hook. Never decreases.
Bytes device_allocated_bytes();

}  // namespace ostinato
