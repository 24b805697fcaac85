// SPDX-License-Identifier: Apache-2.0
#pragma once
// A CPU allocator that counts: what is live, the peak since it was reset, and what each thread has allocated.
//
//   CountingAllocator::install();
//   reset_peak();  Bytes before = live_bytes();
//   ... run a forward ...
//   Bytes kept = live_bytes() - before, peak = peak_bytes() - before;
//   CountingAllocator::remove();
//
// It counts the bytes that were asked for, exactly. Each block carries its size in a header of 64 bytes,
// which keeps torch's alignment and needs no table, so that an allocation costs two atomic additions more.
// Blocks that outlive remove() are freed and counted as before; blocks from before install() are not counted.
// Unlike the hook in thread-local debug information it sees every thread.
//
// Not to be used while torch.profiler records memory: its reports come from the allocator that this one
// replaces.

#include "search/placement/placement.h"

namespace ostinato {

class CountingAllocator {
 public:
  /// Makes it the process's CPU allocator. Nothing happens where it is already.
  static void install();
  /// Puts the allocator back that was there before.
  static void remove();
  static bool installed();
};

/// Bytes of counted blocks that are not freed, over all threads.
Bytes live_bytes();
/// Largest live_bytes() since the last reset_peak().
Bytes peak_bytes();
void reset_peak();
/// Bytes that the calling thread has ever allocated. Never decreases.
Bytes thread_allocated_bytes();

}  // namespace ostinato
