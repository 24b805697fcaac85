// SPDX-License-Identifier: Apache-2.0
#pragma once
// Many micro-batches from few: the steady state of a schedule is repeated, its two ends stay as they are. So
// a search for 10,000 micro-batches costs what one for a hundred does.
//
//   const int few = representative(in, 10000);                 // 64 on 4 devices
//   ... a schedule of `few` whose steady state is `steady` ...
//   stretch(in, schedule, steady, (10000 - few) / steady.unroll)

#include <vector>

#include "search/placement/instance.h"
#include "search/plan/plan.h"

namespace ostinato {

/// So many micro-batches that warm-up, cool-down and some repetends between them fit, and that differ from
/// `micro_batches` by a multiple of every unroll that is likely; `micro_batches` itself where that would not
/// save three quarters, or where what a micro-batch leaves behind in a limited memory adds up. O(devices +
/// blocks).
int representative(const Instance& instance, int micro_batches);

/// The schedule with `more` further repetends in its steady state, still in the order of Plan::schedule. It
/// ends more * period later, and no device holds more at any time. Cut where every block has begun to repeat
/// and none has ended (the window of docs/bounds.md, "Period"): what starts there starts again and again,
/// what starts later does so later. O(steps of the result).
std::vector<ScheduledBlock> stretch(const Instance& instance, const std::vector<ScheduledBlock>& schedule,
                                    const SteadyState& steady, int more);

}  // namespace ostinato
