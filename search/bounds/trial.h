// SPDX-License-Identifier: Apache-2.0
#pragma once
// The trial of all schedules in one direction of time (docs/bounds.md, E).
//
// Level by level, each with the partial schedules of one step more; of those with equal counts only what no
// other dominates goes on, and only what can still end in time. The checker has its own writing of this.

#include "search/bounds/statements.h"
#include "search/bounds/windows.h"

namespace ostinato {

/// Whether a schedule in the direction of the instance ends by `deadline`, counted from the windows' origin
/// where they have one. Adds to `work` and ends beyond `most_work`, and where `stop` says so. The windows
/// must be known, no block of no time may change memory, and all sums of memory must fit.
Trial::Verdict try_one_way(const Instance& instance, const Windows& windows, Nanoseconds deadline,
                           std::int64_t most_work, std::int64_t& work, const std::function<bool()>& stop);

}  // namespace ostinato
