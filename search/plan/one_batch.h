// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan with unequal micro-batches, as one micro-batch of a larger placement: the code that replays, checks
// and explains plans then needs no special case.
//
//   const OneBatch all = as_one_batch(plan, placement);
//   simulate(all.placement, all.plan.micro_batches, all.plan.schedule, options);

#include "search/plan/plan.h"

namespace ostinato {

struct OneBatch {
  Placement placement;  ///< unrolled(): block i * blocks + b is block b of micro-batch i
  Plan plan;            ///< one micro-batch of it; with the plan's figures
};

/// For drawing: the same blocks, with the names and micro-batches of the plan's steps.
OneBatch as_drawn(const Plan& plan, const Placement& placement);

/// A copy of both where the plan has no sizes. O(steps).
OneBatch as_one_batch(const Plan& plan, const Placement& placement);

}  // namespace ostinato
