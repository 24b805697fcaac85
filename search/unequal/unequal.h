// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan for one step with micro-batches of unequal size: when each enters, and in which order each device
// runs their blocks.
//
//   const Placement p = read_placement("v-shape-4.toml").placement;
//   const Plan plan = search_unequal(p, {scaled(p, 512, 1024), scaled(p, 1536, 1024)}, {});
//   plan.lower_bound.makespan                     // docs/bounds.md, U; `ostinato verify` shows it again
//
// The usual schedules in the given and in sorted orders are where it begins, so no plan is worse than they
// are. Work is counted, not time: the same input gives the same plan on every machine.

#include <atomic>
#include <cstdint>
#include <vector>

#include "search/plan/plan.h"
#include "search/plan/sizes.h"

namespace ostinato {

struct UnequalOptions {
  std::int64_t work = 1'500'000;  ///< steps looked at: about 15 ms of one core
  std::uint64_t seed = 0;         ///< of all that is random
  double time_limit_seconds = 0;  ///< the best so far is returned then; <= 0: none, work alone decides
  /// Every backward runs in the order of the micro-batches on its device, and so does each forward that feeds
  /// no other block's forward: gradients and losses are then added as in 1F1B. Bounds are those without it.
  bool keep_order = false;
  const std::atomic<bool>* stop = nullptr;  ///< set it, and the best so far is returned
};

/// What a usual schedule takes with these sizes: to compare with, and never less than the plan.
struct UsualSchedule {
  std::string name;  ///< "1f1b", ... (named.h), in the order given
  Nanoseconds makespan = 0;
  bool fits = false;  ///< the memory
};

/// Throws InputError where the sizes do not go with the placement (check_sizes), InfeasibleError where
/// docs/bounds.md (U4) proves that no schedule exists, and UndecidedError where none was found all the same.
/// O(work) and O(steps * micro-batches).
Plan search_unequal(const Placement& placement, const std::vector<MicroBatch>& sizes,
                    const UnequalOptions& options);

/// The schedules of search/named that the placement admits, with the micro-batches in the order given.
std::vector<UsualSchedule> usual_schedules(const Placement& placement, const std::vector<MicroBatch>& sizes);

}  // namespace ostinato
