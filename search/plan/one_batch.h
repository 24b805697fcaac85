// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan whose micro-batches have sizes of their own, as one micro-batch of a larger placement: what replays,
// checks and explains plans then needs nothing more.
//
//   const OneBatch all = as_one_batch(plan, placement);
//   simulate(all.placement, all.plan.micro_batches, all.plan.schedule, options);

#include "search/plan/plan.h"

namespace ostinato {

struct OneBatch {
  Placement placement;  ///< unrolled(): block i * blocks + b is block b of micro-batch i
  Plan plan;            ///< one micro-batch of it; the figures are those of the plan
};

/// For drawing: the same blocks, but names and micro-batches stay those of the plan, whose steps they are.
OneBatch as_drawn(const Plan& plan, const Placement& placement);

/// A copy of both where the plan has no sizes. O(steps).
OneBatch as_one_batch(const Plan& plan, const Placement& placement);

}  // namespace ostinato
