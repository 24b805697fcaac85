// SPDX-License-Identifier: Apache-2.0
#pragma once
// In which order a sweep places items, and what each has to do with those before it. Private to sweep.cpp and
// sweep_*.
//
// Blocks on several devices come first, then device after device. An item is live from its step on, until
// nothing that is still to come waits for it, is waited for by it, or shares a device with it. Where a period
// has few phases, sets of them are bits of one word.
//
//   const SweepSteps plan(in, trees, 1, period);
//   plan.steps[i].live      // items that step i looks at

#include <cstddef>
#include <cstdint>
#include <vector>

#include "search/placement/instance.h"
#include "search/repetend/modulo_compress.h"

namespace ostinato {

/// The edges that a sweep follows, where they form trees, and which bytes each device holds while they wait.
struct SweepTrees {
  /// Every edge of the instance is a bridge of `compression`, except for edges that longer paths imply.
  SweepTrees(const Instance& in, const Compression& compression);

  struct Link {
    int from, to;
    Nanoseconds weight;
  };
  struct Span {
    int device;
    Bytes bytes;
  };
  std::vector<Link> links;
  std::vector<std::vector<int>> at;        ///< [block]: links that it is an end of
  std::vector<std::vector<Span>> held_by;  ///< [link]
  Bytes unit = 1;                          ///< bytes are counted in these
  Nanoseconds grid = 0;                    ///< what divides all times and transfers

  Bytes scaled(Bytes bytes) const { return bytes / unit; }
};

/// Start modulo period, in units of what divides all times.
using SweepPhase = std::int32_t;

/// Arithmetic with phases.
struct SweepRing {
  std::int64_t period = 0;
  std::uint64_t all = 0;  ///< all phases, where they are on a grid

  explicit SweepRing(std::int64_t phases)
      : period(phases), all(on_grid() ? (std::uint64_t{1} << phases) - 1 : 0) {}

  bool on_grid() const { return period <= kGrid; }
  SweepPhase ring(std::int64_t value) const {
    const std::int64_t left = value % period;
    return static_cast<SweepPhase>(left < 0 ? left + period : left);
  }
  /// The same of what is between -period and period.
  SweepPhase near(SweepPhase value) const {
    return value < 0 ? value + static_cast<SweepPhase>(period) : value;
  }
  /// The phases that are in a set, so much later.
  std::uint64_t turned(std::uint64_t phases, SweepPhase by) const {
    return ((phases << by) | (phases >> (period - by))) & all;
  }
  /// Starts of a block of time x that meets one of time y at phase 0.
  std::uint64_t blocked(std::int64_t x, std::int64_t y) const {
    if (!on_grid()) return 0;
    return x + y > period ? all : turned((std::uint64_t{1} << (x + y - 1)) - 1, ring(1 - x));
  }

 private:
  static constexpr std::int64_t kGrid = 63;
};

/// What placing one item looks at: indices of live items.
struct SweepStep {
  struct Neighbour {
    int live;
    SweepPhase weight;  ///< of the link; modulo the period
    int link;
    bool before;  ///< the neighbour is the input
  };
  struct Shared {
    int live;
    SweepPhase time;
    std::uint64_t blocked = 0;  ///< phases at which they would meet, where this one has phase 0 (on a grid)
  };
  int item = 0;
  SweepPhase time = 0;
  std::vector<Neighbour> neighbours;
  std::vector<Shared> shared;  ///< live items with a device in common
  std::vector<int> kept;       ///< live items that stay so; -1: the new one
  std::vector<int> live;       ///< items, before this step
  std::vector<int> done;       ///< devices that are complete
  std::size_t ahead = 0;       ///< a look ahead ends before this step
  int copy = -1;               ///< of the first block
};

/// Items are copy * blocks + block.
struct SweepSteps {
  SweepSteps(const Instance& in, const SweepTrees& trees, int unroll, Nanoseconds period);

  Nanoseconds unit;  ///< of all phases
  SweepRing ring;
  std::vector<SweepStep> steps;  ///< in their order; none where a period has too many phases
};

}  // namespace ostinato
