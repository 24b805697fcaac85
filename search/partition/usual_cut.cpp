// SPDX-License-Identifier: Apache-2.0
#include "search/partition/usual_cut.h"

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "search/files/error.h"
#include "search/named/named.h"
#include "search/partition/even_split.h"
#include "search/partition/stages.h"
#include "search/plan/memory.h"
#include "search/plan/orders.h"

namespace ostinato {
namespace {

/// Blocks times micro-batches of all schedules that are made.
constexpr std::int64_t kSteps = 3'000'000;

class Climb {
 public:
  Climb(const Profile& profile, const PartitionOptions& options, const Restrictions& rules,
        Objective objective, const std::function<bool()>& stop)
      : profile_(profile),
        options_(options),
        devices_(static_cast<int>(cluster_of(options).devices.size())),
        rules_(rules),
        objective_(objective),
        stop_(stop) {}

  StageCuts run(const std::vector<std::vector<int>>& starts) {
    for (const std::vector<int>& start : starts) try_one(start);
    if (!best_) throw InfeasibleError("no stages of one chunk per device are allowed");
    to_fit_ = !std::exchange(value_.first, false);
    while (step()) {
    }
    return std::move(*best_);
  }

 private:
  using Value = std::pair<bool, Nanoseconds>;  ///< does not fit and should, objective

  /// To the first neighbour that is better: layers go to near stages before far ones.
  bool step() {
    const std::vector<int> sizes = sizes_;
    const int stages = static_cast<int>(sizes.size());
    for (int far = 1; far < stages; ++far) {
      for (int from = 0; from < stages; ++from) {
        for (const int to : {from - far, from + far}) {
          if (to < 0 || to >= stages || sizes[from] == 1) continue;
          std::vector<int> next = sizes;
          --next[from], ++next[to];
          if (steps_ >= kSteps || (stop_ && stop_())) return false;
          if (try_one(next)) return true;
        }
      }
    }
    return false;
  }

  bool try_one(const std::vector<int>& sizes) {
    if (!tried_.insert(sizes).second) return false;
    StageCuts cuts = cut_as(profile_, options_, sizes);
    if (first_broken(rules_, cuts.stages, devices_, options_.split_backward) != nullptr) return false;
    const std::optional<Value> value = value_of(cuts.stages);
    if (!value || (best_ && *value >= value_)) return false;
    best_ = std::move(cuts);
    value_ = *value;
    sizes_ = sizes;
    return true;
  }

  /// Some of the stages may recompute from then on.
  std::optional<Value> value_of(std::vector<Stage>& stages) {
    std::optional<UsualRun> run = made(stages);
    if (run && options_.recompute != Recompute::never && !fits(*run, stages)) {
      for (Stage& stage : stages) {
        const int device = stage.devices.front();
        stage.recompute = run->peaks[device] > run->placement.devices[device].memory;
      }
      run = made(stages);
    }
    if (!run) return std::nullopt;
    return Value(to_fit_ && !fits(*run, stages), objective_value(objective_, run->placement, run->schedule));
  }

  std::optional<UsualRun> made(const std::vector<Stage>& stages) {
    std::optional<UsualRun> run = usual_run(profile_, options_, stages);
    if (run) steps_ += static_cast<std::int64_t>(run->schedule.size());
    return run;
  }

  bool fits(const UsualRun& run, const std::vector<Stage>& stages) const {
    return fits_memory(run.placement, run.peaks) &&
           step_fits(facts_of(profile_, options_, stages), run.placement);
  }

  const Profile& profile_;
  const PartitionOptions& options_;
  const int devices_;
  const Restrictions& rules_;
  const Objective objective_;
  const std::function<bool()>& stop_;
  std::set<std::vector<int>> tried_;
  std::optional<StageCuts> best_;
  Value value_;
  bool to_fit_ = true;
  std::vector<int> sizes_;
  std::int64_t steps_ = 0;
};

}  // namespace

const char* usual_schedule(const PartitionOptions& options) { return options.inference ? "gpipe" : "1f1b"; }

std::optional<UsualRun> usual_run(const Profile& profile, const PartitionOptions& options,
                                  const std::vector<Stage>& stages) {
  Placement placement = place_stages(profile, options, stages);
  const int count = options.micro_batches;
  const std::optional<Orders> orders = named_schedule(usual_schedule(options), placement, count).orders;
  if (!orders) return std::nullopt;
  auto schedule = earliest_starts(placement, count, *orders);
  if (!schedule) return std::nullopt;
  std::vector<Bytes> peaks = peak_memory(placement, *schedule);
  return UsualRun{std::move(placement), std::move(*schedule), std::move(peaks)};
}

StageCuts cut_for_usual(const Profile& profile, const PartitionOptions& options, const Restrictions& rules,
                        Objective objective, const std::vector<std::vector<int>>& starts,
                        const std::function<bool()>& stop) {
  return Climb(profile, options, rules, objective, stop).run(starts);
}

}  // namespace ostinato
