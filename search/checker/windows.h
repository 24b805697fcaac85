// SPDX-License-Identifier: Apache-2.0
#pragma once
// When each step can start at the earliest, and what must follow it at least (docs/bounds.md, W), for the
// bounds M4 and S4 and for the exhaustion.
//
//   const Windows windows(graph, 8);
//   if (windows.known()) windows.earliest(b, 3);   // no schedule starts micro-batch 3 of block b sooner
//
// Micro-batches are in index order on every block: any schedule can be renumbered so, without changing when
// its devices work.

#include <cstdint>
#include <vector>

#include "search/checker/earliest.h"
#include "search/checker/graph.h"

namespace ostinato::checker {

class Windows {
 public:
  /// Steps (blocks * micro-batches), pairs of related blocks, and cubes of the blocks on a device (its sets
  /// for W3, and who is in them) from which on nothing is computed.
  static constexpr Wide kMostSteps = 1 << 22;
  static constexpr Wide kMostPaths = 1 << 24;
  static constexpr Wide kMostSets = 1 << 22;

  /// Whether the placement is small enough, and its times fit.
  static bool affordable(const Graph& graph, int n);

  /// From the start of the schedule to its end; with an `origin`, from that device's first start to its last
  /// end.
  Windows(const Graph& graph, int n, int origin = kNoDevice);

  /// False where it is not affordable: then there are no windows.
  bool known() const { return known_; }
  int origin() const { return origin_; }
  /// Start of micro-batch i of block b; kUnknown where it need not wait for the origin.
  Nanoseconds earliest(int b, int i) const { return head_[at(b, i)]; }
  /// From the end of that step to the end; kUnknown where the origin need not wait for it.
  Nanoseconds after(int b, int i) const { return tail_[at(b, n_ - 1 - i)]; }
  /// M4, with an origin S4: no schedule ends before the least end of this device's work. 0 where nothing is
  /// known.
  Nanoseconds least_end_of(int device) const;
  /// Steps looked at: the same on every machine.
  std::int64_t work() const { return work_; }

 private:
  std::size_t at(int b, int i) const { return static_cast<std::size_t>(i) * blocks_ + b; }

  const Graph& graph_;
  int n_;
  int origin_;
  std::size_t blocks_;
  bool known_;
  std::vector<Nanoseconds> head_, tail_;  ///< tail_ by the distance of the micro-batch from the last
  std::int64_t work_ = 0;
};

}  // namespace ostinato::checker
