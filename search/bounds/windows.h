// SPDX-License-Identifier: Apache-2.0
#pragma once
// When each step can start at the earliest, and what must follow it at least (docs/bounds.md, W).
//
//   const Windows windows(in, mirror, match_all(in), 8);
//   if (windows.known()) windows.earliest(b, 3);   // no schedule starts micro-batch 3 of block b sooner
//
// Micro-batches are in index order on every block. The checker has its own writing of this.

#include <cstdint>
#include <functional>
#include <vector>

#include "search/bounds/matching.h"
#include "search/placement/instance.h"

namespace ostinato {

/// Of a step that need not wait for the origin.
inline constexpr Nanoseconds kUnknown = -1;
/// Times count from the start of the schedule, and not from a device's first start.
inline constexpr int kNoDevice = -1;

class Windows {
 public:
  /// Steps from which on nothing is computed.
  static constexpr std::int64_t kMostSteps = 1 << 22;

  /// Whether the placement is small enough, and its times fit (docs/bounds.md, W). O(blocks + edges).
  static bool affordable(const Instance& instance, int n);

  /// `mirror` is instance.reversed(). With an `origin` from that device's first start to its last end.
  /// O(blocks * (blocks + edges)) and K^2 for each pair of related blocks. `stop` is asked once a
  /// micro-batch.
  Windows(const Instance& instance, const Instance& mirror, const Matchings& held, int n,
          int origin = kNoDevice, const std::function<bool()>& stop = {});

  /// False where it is not affordable, or was stopped: then there are no windows.
  bool known() const { return !head_.empty(); }
  int origin() const { return origin_; }
  int micro_batches() const { return n_; }
  /// Least start of micro-batch i of block b, backwards from the end: i counts from the last one. kUnknown.
  Nanoseconds start(int b, int i, bool backwards) const {
    return (backwards ? tail_ : head_)[static_cast<std::size_t>(i) * blocks_ + b];
  }
  Nanoseconds earliest(int b, int i) const { return start(b, i, false); }
  /// From the end of that step to the end.
  Nanoseconds after(int b, int i) const { return start(b, n_ - 1 - i, true); }
  /// Steps looked at: the same on every machine.
  std::int64_t work() const { return work_; }

 private:
  int n_;
  int origin_;
  std::size_t blocks_;
  std::int64_t work_ = 0;
  std::vector<Nanoseconds> head_, tail_;
};

/// M4, with an origin S4: the least end of the device's work.
Nanoseconds least_end_of(const Instance& instance, const Windows& windows, int device);

}  // namespace ostinato
