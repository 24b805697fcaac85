// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a repetend may be assumed to look like without losing the best one: nothing is a whole period later
// than it has to be.
//
// Take a repetend and a set S of blocks that holds the inputs of all its blocks, such that every edge out of
// S has a whole period to spare. Let the rest run one period (one micro-batch, where it covers several)
// earlier: edges hold, devices see the same blocks at the same phases, and at every block of the rest the
// memory of S counts one micro-batch less, at every block of S that of the rest one more. Where each byte
// given back was taken by a block that leads to the one that gives it, and a micro-batch gives back all it
// takes, S holds at least nothing and the rest at most nothing: no device needs more. So some best repetend
// has, for every such S, an edge out of S with less than a period to spare. Three things follow, with P the
// period:
//   - An edge whose removal parts the graph (S: its side) has less than P to spare, or 2 P where the repetend
//     covers several micro-batches. Edges that a longer path implies do not count.
//   - The tight edges connect all blocks that the graph connects, so two of those are at most `reach` and P
//     (or 2 P) for each block apart.
//   - Parts of the graph that nothing connects can be moved so that their first blocks start within one P.

#include <vector>

#include "search/placement/instance.h"

namespace ostinato {

struct Compression {
  struct Bridge {
    int from;
    int to;
    Nanoseconds weight;  ///< start(to) - start(from) >= weight, and < weight + P (or 2 P)
  };
  /// Bytes that `give` gives back on `device` and `take` took, along a path.
  struct Match {
    int device;
    int take;
    int give;
    Bytes bytes;
  };
  std::vector<Bridge> bridges;
  std::vector<int> part;     ///< [block]: which connected part of the graph it belongs to
  std::vector<int> anchors;  ///< [part]: one block of it
  Nanoseconds reach = 0;     ///< sum of all times and of each block's slowest transfer
  std::vector<Match> matches;
  bool balanced = false;  ///< all bytes are matched: the above holds under limits of memory too
};

/// O(blocks * edges).
Compression compress(const Instance& instance);

}  // namespace ostinato
