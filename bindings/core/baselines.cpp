// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/baselines.h"

#include <algorithm>

#include "bindings/core/plan_summary.h"
#include "search/files/error.h"
#include "search/partition/chain.h"
#include "search/partition/even_split.h"
#include "search/partition/stages.h"
#include "search/partition/usual_cut.h"
#include "search/plan/memory.h"
#include "search/plan/orders.h"
#include "search/simulate/simulate.h"

namespace ostinato::core {
namespace {

/// By 1F1B; of forwards alone, one micro-batch after the other.
std::optional<UsualOrder> in_usual_order(const Profile& profile, const PartitionOptions& options,
                                         const std::vector<Stage>& stages, Objective objective,
                                         const std::string& suffix) {
  PartitionOptions usual = options;
  usual.lanes = LanesOf::none;
  const std::optional<UsualRun> run = usual_run(profile, usual, stages);
  if (!run) return std::nullopt;
  UsualOrder found{{usual_schedule(options) + suffix, makespan_of(run->placement, run->schedule),
                    objective_value(objective, run->placement, run->schedule),
                    fits_memory(run->placement, run->peaks)}};
  if (objective == Objective::makespan && !run->placement.hosts.empty())
    found.shared = replayed_makespan(run->placement, options.micro_batches, run->schedule);
  found.peak_memory = most_memory(
      peaks_with_step(run->peaks, run->placement, facts_of(profile, options, stages).step_memory));
  return found;
}

/// On the best stages that there are with one chunk per device, which recompute where 1F1B does not fit
/// otherwise; nullopt where there are none, as the candidates say, or the time was up.
std::optional<UsualOrder> on_best_stages(const Profile& profile, const PartitionOptions& one_chunk,
                                         Objective objective, const JointChoice& choice) {
  std::optional<UsualOrder> best;
  const auto key = [](const UsualOrder& one) { return std::pair(!one.fits, one.value); };
  const auto offer = [&](const StageCuts& cuts, const std::string& suffix) {
    const auto found = in_usual_order(profile, one_chunk, cuts.stages, objective, suffix);
    if (found && (!best || key(*found) < key(*best))) best = found;
  };
  bool listed = false;  // not where all candidates split backwards
  for (const Candidate& candidate : choice.candidates) {
    if (candidate.even || !is_usual(candidate, one_chunk)) continue;
    listed = true;
    if (candidate.cuts)
      offer(*candidate.cuts, "");
    else if (!candidate.no_shorter && !candidate.infeasible && !candidate.usual)
      return std::nullopt;
  }
  try {
    if (!listed) offer(cut_chain(profile, one_chunk), "");
  } catch (const InfeasibleError&) {
    // With recomputation there may be some.
  } catch (const StoppedError&) {
    return std::nullopt;
  }
  for (const Candidate& candidate : choice.candidates)
    if (candidate.usual && candidate.options.recompute != Recompute::never && candidate.cuts)
      offer(*candidate.cuts, "_recompute");
  return best;
}

/// "your run now" on these devices, expected from the layers' times; where it is measured, also that.
std::optional<UsualOrder> your_run(const Profile& profile, const PartitionOptions& one_chunk,
                                   Objective objective) {
  const OwnRun& run = profile.run;
  const Cluster cluster = cluster_of(one_chunk);
  if (one_chunk.inference || run.layers.size() != cluster.devices.size()) return std::nullopt;
  if (std::find(run.layers.begin(), run.layers.end(), 0) != run.layers.end()) return std::nullopt;
  const StageCuts cuts = cut_as(profile, one_chunk, run.layers);
  std::optional<UsualOrder> found = in_usual_order(profile, one_chunk, cuts.stages, objective, "");
  if (!found) return found;
  found->name = "your_run";
  const bool as_measured = std::all_of(cluster.kinds.begin(), cluster.kinds.end(),
                                       [](const DeviceKind& kind) { return kind.speed == kUsualSpeed; });
  if (as_measured && objective == Objective::makespan && run.micro_batches == one_chunk.micro_batches)
    found->measured = run.step.median;
  return found;
}

}  // namespace

Baselines baselines(const Profile& profile, const PartitionOptions& options, Objective objective,
                    const JointChoice& choice, const std::function<bool()>& stop) {
  PartitionOptions one_chunk = options;
  one_chunk.chunks = 1;
  one_chunk.split_backward = false;  // DeepSpeed's engine runs whole ones
  one_chunk.sharded.clear();
  one_chunk.recompute = Recompute::never;
  Baselines result;
  const std::size_t devices = cluster_of(one_chunk).devices.size();
  if (profile.layers.size() < devices) return result;
  result.yours = your_run(profile, one_chunk, objective);
  if (!result.yours)
    result.even =
        in_usual_order(profile, one_chunk, cut_evenly(profile, one_chunk).stages, objective, "_even_split");
  one_chunk.stop = stop;
  result.balanced = on_best_stages(profile, one_chunk, objective, choice);
  return result;
}

std::vector<UsualOrder> all_of(const Baselines& base) {
  std::vector<UsualOrder> list;
  for (const std::optional<UsualOrder>& one : {base.yours, base.balanced, base.even})
    if (one) list.push_back(*one);
  return list;
}

Nanoseconds value_of(const Baseline& baseline) {
  return baseline.shared > 0 ? baseline.shared : baseline.value;
}

std::vector<Baseline> kept(const Baselines& base) {
  const std::vector<UsualOrder> all = all_of(base);
  return {all.begin(), all.end()};
}

}  // namespace ostinato::core
