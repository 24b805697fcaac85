// SPDX-License-Identifier: Apache-2.0
#pragma once
// Schedules to begin with: unequal micro-batches enter in a given order, and a rule says what runs.
//
//   const std::vector<int> order = dispatch(jobs, {2, 0, 1}, {.in_flight = 4}, work);   // empty: a deadlock
//
// `entry` lists the micro-batches in the order in which they enter.

#include <cstdint>
#include <vector>

#include "search/unequal/jobs.h"

namespace ostinato::unequal {

struct Rule {
  enum First {
    deepest,  ///< what is furthest along its micro-batch: backwards before forwards
    oldest,   ///< the micro-batch that entered first
    longest,  ///< what most work must follow
  };
  First first = deepest;
  int in_flight = 0;  ///< a micro-batch enters only while fewer than this are unfinished; 0: no limit
};

/// Whenever a device is free it starts a ready step that fits the memory, by the rule. All steps by start, or
/// none where memory leads into a deadlock. Adds to `work` the steps looked at. O(steps * ready steps).
std::vector<int> dispatch(const Jobs& jobs, const std::vector<int>& entry, const Rule& rule,
                          std::int64_t& work);

/// Common orders of entry, without repetition: as given, by rising and by falling work, and small ones at
/// both ends with the large ones between. Then Johnson's rule (1954) between the first and the last device.
std::vector<std::vector<int>> usual_entries(const Jobs& jobs);

}  // namespace ostinato::unequal
