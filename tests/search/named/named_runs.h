// SPDX-License-Identifier: Apache-2.0
#pragma once
// Named schedules, run on placements of named shapes.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "search/named/named.h"
#include "search/placement/shapes.h"
#include "tests/search/checked.h"
#include "tests/support/in_parts.h"

namespace ostinato {

inline ShapeOptions unit_split(int devices, int chunks = 1) {
  return {.devices = devices, .chunks = chunks, .forward = 1, .backward = 1, .weight = 1};
}

inline ShapeOptions whole(int devices, int chunks, Nanoseconds forward, Nanoseconds backward) {
  return {.devices = devices, .chunks = chunks, .forward = forward, .backward = backward};
}

inline std::vector<ScheduledBlock> run(const std::string& name, const Placement& placement,
                                       int micro_batches) {
  const NamedSchedule named = named_schedule(name, placement, micro_batches);
  if (!named.orders) {
    ADD_FAILURE() << name << ": " << named.why_not;
    return {};
  }
  auto schedule = earliest_starts(placement, micro_batches, *named.orders);
  if (!schedule)
    ADD_FAILURE() << name << " contradicts itself for " << placement.name << ", " << micro_batches;
  return schedule ? *schedule : std::vector<ScheduledBlock>{};
}

inline Nanoseconds makespan(const std::string& name, const Placement& placement, int micro_batches) {
  return makespan_of(placement, run(name, placement, micro_batches));
}

inline std::vector<Bytes> peaks(const std::string& name, const Placement& placement, int micro_batches) {
  return peak_memory(placement, run(name, placement, micro_batches));
}

}  // namespace ostinato
