#pragma once
// The same orders at other times, for the objectives that the earliest starts do not serve best.

#include <vector>

#include "search/instance.h"
#include "search/plan.h"

namespace ostinato {

/// The same order on every device with every step as late as it can be while no device ends later: it
/// shortens the span and holds memory for a shorter time. `schedule` must be by start. O(steps +
/// dependencies).
std::vector<ScheduledBlock> as_late_as_possible(const Instance& instance, int micro_batches,
                                                const std::vector<ScheduledBlock>& schedule);

/// The least interval, not below `at_least`, at which the schedule `one` of one micro-batch can start again
/// and again without two steps meeting on a device. start[b]: its start of block b.
Nanoseconds least_interval(const Instance& instance, const std::vector<Nanoseconds>& start,
                           Nanoseconds at_least);

}  // namespace ostinato
