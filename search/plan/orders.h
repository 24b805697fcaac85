// SPDX-License-Identifier: Apache-2.0
#pragma once
// A schedule as per-device orders, which is what a search moves in.
//
// Given in which order each device runs its (block, micro-batch) steps, the earliest start of every step is a
// longest path, and the memory of a device depends on its order alone (a device runs one block at a time).
// Job-shop scheduling calls this the disjunctive graph (Roy, Sussmann 1964).
//
//   Orders orders = ...;                                     // one sequence a device
//   auto schedule = earliest_starts(placement, 8, orders);   // nullopt if the orders contradict each other

#include <optional>
#include <vector>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato {

struct Step {
  int block = -1;
  int micro_batch = 0;

  friend bool operator==(const Step&, const Step&) = default;
};

/// One sequence a device; a block on several devices stands in the sequence of each of them.
using Orders = std::vector<std::vector<Step>>;

/// The earliest start of every (block, micro-batch) under these orders, sorted as in Plan::schedule; nullopt
/// if orders and dependencies form a cycle. O(steps + dependencies).
std::optional<std::vector<ScheduledBlock>> earliest_starts(const Placement& placement, int micro_batches,
                                                           const Orders& orders);

/// Peak memory per device of a schedule, static memory included. What ends at an instant gives back before
/// what starts at it takes. O(steps log steps).
std::vector<Bytes> peak_memory(const Placement& placement, const std::vector<ScheduledBlock>& schedule);

/// The per-device orders of a schedule.
Orders orders_of(const Placement& placement, const std::vector<ScheduledBlock>& schedule);

/// By start, then first device, then block name, then micro-batch.
void sort_schedule(const Placement& placement, std::vector<ScheduledBlock>& schedule);

/// Last end; longest first-start-to-last-end of a device; longest first-start-to-last-end of a micro-batch.
Nanoseconds makespan_of(const Placement& placement, const std::vector<ScheduledBlock>& schedule);
Nanoseconds span_of(const Placement& placement, const std::vector<ScheduledBlock>& schedule);
Nanoseconds latency_of(const Placement& placement, const std::vector<ScheduledBlock>& schedule);
/// The one of these that the objective names.
Nanoseconds objective_value(Objective objective, const Placement& placement,
                            const std::vector<ScheduledBlock>& schedule);

}  // namespace ostinato
