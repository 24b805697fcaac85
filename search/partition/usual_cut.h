// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stages of one chunk per device for 1F1B itself: the cuts of chain.h suit the busiest device alone, and 1F1B
// often ends sooner with less on the first or the last one. What a plan is compared with.
//
//   StageCuts cuts = cut_for_usual(profile, options, {}, Objective::makespan, {{4, 4, 4}, {5, 4, 3}}, stop);
//   UsualRun run = *usual_run(profile, options, cuts.stages);
//   if (!fits_memory(run.placement, run.peaks)) ...;

#include <functional>
#include <optional>
#include <vector>

#include "search/partition/partition_options.h"
#include "search/placement/placement.h"
#include "search/plan/plan.h"
#include "search/profile/restrictions.h"

namespace ostinato {

/// The name of the schedule that a plan is compared with: 1F1B; of forwards alone, one micro-batch after the
/// other.
const char* usual_schedule(const PartitionOptions& options);

/// What stages do under the usual schedule.
struct UsualRun {
  Placement placement;
  std::vector<ScheduledBlock> schedule;
  std::vector<Bytes> peaks;  ///< by device
};

/// nullopt: these stages have none.
std::optional<UsualRun> usual_run(const Profile& profile, const PartitionOptions& options,
                                  const std::vector<Stage>& stages);

/// The best of `starts` (numbers of layers, stage by stage), from which stages give a layer to another one,
/// the cuts between them moving along, while that makes the usual schedule shorter; within the memory if a
/// start is. Unless `options.recompute` is never, stages recompute on devices that do not fit otherwise. The
/// work is counted, not timed. Throws InfeasibleError where no start is allowed; `stop` ends it with the best
/// so far.
StageCuts cut_for_usual(const Profile& profile, const PartitionOptions& options, const Restrictions& rules,
                        Objective objective, const std::vector<std::vector<int>>& starts,
                        const std::function<bool()>& stop);

}  // namespace ostinato
