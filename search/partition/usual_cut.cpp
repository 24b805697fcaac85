// SPDX-License-Identifier: Apache-2.0
#include "search/partition/usual_cut.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "search/files/error.h"
#include "search/named/references.h"
#include "search/partition/even_split.h"
#include "search/partition/stages.h"

namespace ostinato {
namespace {

/// Blocks times micro-batches of all schedules that are made.
constexpr std::int64_t kSteps = 3'000'000;

class Climb {
 public:
  Climb(const Profile& profile, const PartitionOptions& options, const Restrictions& rules,
        Objective objective, const std::function<bool()>& stop)
      : profile_(profile), options_(options), rules_(rules), objective_(objective), stop_(stop) {}

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
    if (first_broken(rules_, cuts.stages, options_.split_backward) != nullptr) return false;
    const std::optional<Value> value = value_of(cuts);
    if (!value || (best_ && *value >= value_)) return false;
    best_ = std::move(cuts);
    value_ = *value;
    sizes_ = sizes;
    return true;
  }

  std::optional<Value> value_of(const StageCuts& cuts) {
    const Placement placement = place_stages(profile_, options_, cuts.stages);
    const int count = options_.micro_batches;
    steps_ += static_cast<std::int64_t>(placement.blocks.size()) * count;
    const std::vector<Reference> usual =
        references(placement, count, objective_,
                   [&](const std::string& name) { return name == usual_schedule(options_); });
    if (usual.empty()) return std::nullopt;
    const bool fits = usual.front().fits && step_fits(facts_of(profile_, options_, cuts.stages), placement);
    return Value(to_fit_ && !fits, usual.front().value);
  }

  const Profile& profile_;
  const PartitionOptions& options_;
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

StageCuts cut_for_usual(const Profile& profile, const PartitionOptions& options, const Restrictions& rules,
                        Objective objective, const std::vector<std::vector<int>>& starts,
                        const std::function<bool()>& stop) {
  return Climb(profile, options, rules, objective, stop).run(starts);
}

}  // namespace ostinato
