// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/baselines.h"

#include <algorithm>

#include "bindings/core/plan_summary.h"
#include "search/files/error.h"
#include "search/named/named.h"
#include "search/partition/chain.h"
#include "search/partition/even_split.h"
#include "search/partition/stages.h"
#include "search/partition/usual_cut.h"
#include "search/plan/memory.h"
#include "search/plan/orders.h"
#include "search/simulate/simulate.h"

namespace ostinato::core {
namespace {

/// What these stages run by 1F1B; forwards alone, one micro-batch after the other.
struct Ordered {
  Placement placement;
  std::vector<ScheduledBlock> schedule;
  std::vector<Bytes> peaks;  ///< by device
};

std::optional<Ordered> ordered(const Profile& profile, const PartitionOptions& options,
                               const std::vector<Stage>& stages) {
  PartitionOptions usual = options;
  usual.lanes = LanesOf::none;
  Placement placement = place_stages(profile, usual, stages);
  const std::optional<Orders> orders =
      named_schedule(usual_schedule(options), placement, options.micro_batches).orders;
  if (!orders) return std::nullopt;
  auto schedule = earliest_starts(placement, options.micro_batches, *orders);
  if (!schedule) return std::nullopt;
  std::vector<Bytes> peaks = peak_memory(placement, *schedule);
  return Ordered{std::move(placement), std::move(*schedule), std::move(peaks)};
}

std::optional<UsualOrder> in_usual_order(const Profile& profile, const PartitionOptions& options,
                                         const std::vector<Stage>& stages, Objective objective,
                                         const std::string& suffix) {
  const std::optional<Ordered> made = ordered(profile, options, stages);
  if (!made) return std::nullopt;
  const Placement& placement = made->placement;
  UsualOrder found{{usual_schedule(options) + suffix, makespan_of(placement, made->schedule),
                    objective_value(objective, placement, made->schedule),
                    fits_memory(placement, made->peaks)}};
  if (objective == Objective::makespan && !placement.hosts.empty())
    found.shared = replayed_makespan(placement, options.micro_batches, made->schedule);
  found.peak_memory =
      most_memory(peaks_with_step(made->peaks, placement, facts_of(profile, options, stages).step_memory));
  return found;
}

/// 1F1B on the best of the stages that are offered: those that fit the memory before those that are shorter.
class Best {
 public:
  Best(const Profile& profile, const PartitionOptions& options, Objective objective)
      : profile_(profile), options_(options), objective_(objective) {}

  void offer(const std::vector<Stage>& stages, const std::string& suffix = "") {
    const auto found = in_usual_order(profile_, options_, stages, objective_, suffix);
    if (found && (!best_ || key(*found) < key(*best_))) best_ = found;
  }

  /// With recomputation on the devices that do not fit otherwise.
  void offer_recomputing(std::vector<Stage> stages) {
    const std::optional<Ordered> made = ordered(profile_, options_, stages);
    if (!made) return;
    for (Stage& stage : stages) {
      const int device = stage.devices.front();
      if (made->peaks[device] > made->placement.devices[device].memory) stage.recompute = true;
    }
    offer(stages, kRecompute);
  }

  /// Cuts for this kind of recomputation; nothing where none fit, or the time is up.
  void offer_chain(Recompute how) {
    PartitionOptions options = options_;
    options.recompute = how;
    try {
      offer(cut_chain(profile_, options).stages, how == Recompute::never ? "" : kRecompute);
    } catch (const InfeasibleError&) {
    } catch (const StoppedError&) {
    }
  }

  const std::optional<UsualOrder>& found() const { return best_; }
  bool fits() const { return best_ && best_->fits; }

 private:
  static constexpr auto kRecompute = "_recompute";

  static std::pair<bool, Nanoseconds> key(const UsualOrder& one) { return {!one.fits, one.value}; }

  const Profile& profile_;
  const PartitionOptions& options_;
  const Objective objective_;
  std::optional<UsualOrder> best_;
};

/// On the best stages that there are with one chunk per device, as the candidates say. Where 1F1B does not
/// fit on them, on stages that recompute, if `recompute` allows it: those that need it, or all, as
/// DeepSpeed's activation_checkpoint_interval does. nullopt where there are none, or the time was up.
std::optional<UsualOrder> on_best_stages(const Profile& profile, const PartitionOptions& one_chunk,
                                         Objective objective, const JointChoice& choice, bool recompute) {
  Best best(profile, one_chunk, objective);
  for (const Candidate& candidate : choice.candidates) {
    if (candidate.even || !is_usual(candidate, one_chunk)) continue;
    if (candidate.cuts)
      best.offer(candidate.cuts->stages);
    else if (!candidate.no_shorter && !candidate.infeasible && !candidate.usual)
      return std::nullopt;
  }
  if (!best.found()) best.offer_chain(Recompute::never);
  if (!recompute || best.fits()) return best.found();
  for (Candidate candidate : choice.candidates) {
    if (!candidate.cuts || candidate.options.recompute == Recompute::partly) continue;
    candidate.options.recompute = Recompute::never;
    if (is_usual(candidate, one_chunk)) best.offer_recomputing(candidate.cuts->stages);
  }
  best.offer_chain(Recompute::always);
  return best.found();
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
  one_chunk.sharded.clear();
  one_chunk.recompute = Recompute::never;
  const bool recompute = options.recompute != Recompute::never && !options.inference;
  Baselines result;
  const std::size_t devices = cluster_of(one_chunk).devices.size();
  if (profile.layers.size() < devices) return result;
  result.yours = your_run(profile, one_chunk, objective);
  if (!result.yours)
    result.even =
        in_usual_order(profile, one_chunk, cut_evenly(profile, one_chunk).stages, objective, "_even_split");
  one_chunk.stop = stop;
  result.balanced = on_best_stages(profile, one_chunk, objective, choice, recompute);
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
