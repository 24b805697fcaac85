// SPDX-License-Identifier: Apache-2.0
#pragma once
// The same orders at other times: each step as early or as late as it can be.

#include <vector>

#include "search/placement/instance.h"
#include "search/plan/plan.h"

namespace ostinato {

/// The earliest start of every step where each device runs its steps in the order of `sequence` (the i-th
/// mention of a block is its micro-batch i), in that order. Empty if a step stands before one of its inputs:
/// then earliest_starts (orders.h) tells. O(steps * (devices a block + inputs)).
std::vector<ScheduledBlock> as_early_as_possible(const Instance& instance, int micro_batches,
                                                 const std::vector<int>& sequence);

/// By start, and equal starts as they must have run: what takes no time first, inputs before followers. O(n
/// log n).
void sort_as_run(const Instance& instance, std::vector<ScheduledBlock>& schedule);

/// The same order on every device with every step as late as it can be while no device ends later: it
/// shortens the span and holds memory for a shorter time. In `schedule` each step stands after its inputs and
/// after what its devices run before it (sort_as_run); so it does in the result. O(steps + dependencies).
std::vector<ScheduledBlock> as_late_as_possible(const Instance& instance, int micro_batches,
                                                std::vector<ScheduledBlock> schedule);

/// The least interval, not below `at_least`, at which the schedule `one` of one micro-batch can start again
/// and again without two steps meeting on a device. start[b]: its start of block b.
Nanoseconds least_interval(const Instance& instance, const std::vector<Nanoseconds>& start,
                           Nanoseconds at_least);

}  // namespace ostinato
