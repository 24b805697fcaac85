// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which bytes of a device a micro-batch of its own size surely holds, and for how long (docs/bounds.md, U3).

#include <vector>

#include "search/unequal/jobs.h"

namespace ostinato::unequal {

/// Bytes that one step takes and another one, or the same, of its micro-batch gives back.
struct Held {
  int taker;
  int giver;
  Bytes bytes;
  Nanoseconds distance;  ///< longest path from the start of the one to the end of the other
};

struct Matched {
  std::vector<Held> held;
  bool all_given_taken = true;  ///< every byte given back was taken by a step that a path leads from
};

/// The greedy matching of M3 on device d, for each micro-batch with its own figures. O(micro-batches *
/// takers * (blocks + givers)).
Matched match(const Jobs& jobs, int d);

}  // namespace ostinato::unequal
