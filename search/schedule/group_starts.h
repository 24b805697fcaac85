// SPDX-License-Identifier: Apache-2.0
#pragma once
// A schedule's measures, as groups of steps: the makespan is the length of the group of all steps; the span
// is the length of the longest device's group; the latency is the length of the longest micro-batch's.
//
// For given orders, no group begins before its start S, and the least T by which every group has ended is
// sought: a path from group g to group h has S[g] + length <= S[h] + T. So T is the largest mean length of
// the circles over groups (Karp 1978), and with the starts that reach it it becomes a makespan problem with
// heads S and tails -S: whatever shortens a makespan shortens a span or a latency.
//
//   const GroupStarts least = least_extent(longest, groups);   // longest[g * groups + h]; kNoPath: none

#include <limits>
#include <vector>

#include "search/placement/instance.h"
#include "search/plan/plan.h"

namespace ostinato {

inline constexpr Nanoseconds kNoPath = std::numeric_limits<Nanoseconds>::min() / 4;

struct GroupStarts {
  Nanoseconds extent = 0;          ///< within so long every group has begun and ended
  std::vector<Nanoseconds> start;  ///< per group, none below 0; of one group 0
};

/// `longest[g * groups + h]`: the longest path from the start of a step of g to the end of a step of h.
/// O(groups^3) for each circle that is found; there are few.
GroupStarts least_extent(const std::vector<Nanoseconds>& longest, int groups);

/// Groups of the objective.
int groups_of(Objective objective, const Instance& instance, int micro_batches);

}  // namespace ostinato
