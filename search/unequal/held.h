// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which bytes of a device a micro-batch of a given size surely holds, and for how long (docs/bounds.md, U3).

#include <vector>

#include "search/bounds/matching.h"
#include "search/unequal/jobs.h"

namespace ostinato::unequal {

struct Matched {
  std::vector<Held> held;       ///< of steps in place of blocks, without what is never given back
  bool all_given_taken = true;  ///< every byte given back was taken by a step that a path leads from
};

/// The matching of M3 on device d, for each micro-batch with its own figures. O(micro-batches *
/// takers * (blocks + givers)).
Matched match(const Jobs& jobs, int d);

}  // namespace ostinato::unequal
