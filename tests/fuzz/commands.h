// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the commands do with what they have read, small enough to be done a million times.
//
//   run_plan(plan, placement);      // false: the checker, or the lowering, lets it not pass
//
// What must hold and does not is a std::logic_error.

#include <string_view>
#include <vector>

#include "search/graph/graph.h"
#include "search/plan/plan.h"

namespace ostinato::fuzz {

/// Throws std::logic_error unless it holds.
void must(bool holds, const char* what);

/// `show`, `simulate --explain` and `lower`. Of the pictures one is made, by the plan's makespan.
bool run_plan(const Plan& plan, const Placement& placement);

/// `simulate --sizes` and `plan --sizes`, of 6 micro-batches at most.
void run_sizes(const Placement& placement, const std::vector<MicroBatch>& sizes);

/// `partition` of a graph, of 24 operations on 8 devices at most. `way`: which strategy, and which schedule.
void run_graph(const graph::OperatorGraph& graph, const graph::GraphDevices& devices, std::size_t way);

/// `search` and `verify` of the tiny placement that the bytes choose (tests/search/strange.h), with what
/// run_plan() does. False: there is no plan.
bool run_search(std::string_view bytes);

}  // namespace ostinato::fuzz
