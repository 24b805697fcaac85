// SPDX-License-Identifier: Apache-2.0
#pragma once
// The curve of makespan over memory (`ostinato search --pareto memory`).
//
//   const ParetoCurve curve = pareto_memory(placement, {.micro_batches = 16}, 24);
//   for (const Plan& plan : curve.plans) ... plan.capacity->memory, plan.capacity->lower_bound
//
// Memory is the most that any device holds, static memory included. The first plan is searched within the
// placement's own memory, each following one within less than the one before needs, down to the least memory
// in which any schedule exists. A plan for less memory is a candidate for more, so the plans that remain get
// longer as their memory shrinks.

#include <optional>
#include <vector>

#include "search/placement/placement.h"
#include "search/plan/plan.h"
#include "search/portfolio/search_options.h"

namespace ostinato {

struct ParetoCurve {
  /// From the most memory to the least, every objective above the one before. Each holds for the placement as
  /// it is given: lower_bound and optimal are claimed for its memory, and Plan::capacity says what is proved
  /// for all plans that need no more memory than this one. The capacity of a device is the smaller one of
  /// its own and Plan::capacity.
  std::vector<Plan> plans;
  Bytes least = 0;            ///< no plan was found for less
  bool least_proved = false;  ///< and there is none: search() throws InfeasibleError one byte below
  bool cut_by_limit = false;  ///< a plan's search was, or there is untried memory
  /// Where the time was up: no search had more memory than `above` and less than `below`.
  struct Untried {
    Bytes above = 0, below = 0;
  };
  std::optional<Untried> untried;
};

/// At most `points` plans (>= 2): where memory comes in finer steps, some are left out, the least never. The
/// searches after the first share four times the usual work. Throws what search() throws where not even the
/// first plan exists.
ParetoCurve pareto_memory(const Placement& placement, const SearchOptions& options, int points);

}  // namespace ostinato
