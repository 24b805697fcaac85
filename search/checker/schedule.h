// SPDX-License-Identifier: Apache-2.0
#pragma once
// The schedule itself, checked from the placement alone, and the figures that follow from it.

#include "search/checker/timetable.h"

namespace ostinato::checker {

/// Devices run one block at a time, every input has arrived, no device is ever over its memory. `table` must
/// be complete. O(steps log steps + dependencies).
void check_schedule(const Timetable& table, Report& report);

/// The steps are listed by start, first device, name, micro-batch. Every step must be one of the placement's.
void check_listing(const Plan& plan, const Placement& placement, Report& report);

/// makespan, span and peak memory are what the plan says. `table` must be complete.
void check_figures(const Timetable& table, Report& report);

/// The longest time of one micro-batch from its first start to its last end. `table` must be complete.
Nanoseconds latency_of(const Timetable& table);

}  // namespace ostinato::checker
