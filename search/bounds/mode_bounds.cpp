// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/mode_bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "search/bounds/bounds.h"
#include "search/bounds/feasible.h"
#include "search/files/error.h"

namespace ostinato {
namespace {

constexpr int kMostSets = 64;
constexpr int kFree = -1;  ///< of a choice: any of its modes may be taken

/// C1: a placement none of whose bounds is above what holds for any modes that agree with `fixed`: free
/// choices take their least times, blocks that one of their modes leaves out go, and devices that they touch
/// have no memory limit.
Placement relaxed(const Placement& placement, const Assignment& fixed) {
  Placement result = placement;
  for (std::size_t c = 0; c < fixed.size(); ++c) {
    Choice& choice = result.choices[c];
    if (fixed[c] != kFree) {
      choice.modes = {{"", {}}, choice.modes[fixed[c]]};
      continue;
    }
    Mode least{"", {}};
    for (const Mode& mode : choice.modes) {
      for (const BlockChange& change : mode.changes) {
        Block& block = result.blocks[change.block];
        block.time = std::min(block.time, change.time.value_or(block.time));
        for (const int d : block.devices) result.devices[d].memory = kUnlimited;
        if (change.absent) least.changes.push_back({.block = change.block, .absent = true});
      }
    }
    choice.modes = {{"", {}}, least};
  }
  return with_modes(result, Assignment(fixed.size(), 1));
}

/// Bounds of one device over the modes of its own choices.
class DeviceModes {
 public:
  DeviceModes(const Placement& placement, Objective objective, int micro_batches)
      : placement_(placement),
        objective_(objective),
        micro_batches_(micro_batches),
        local_(placement.devices.size()) {
    for (std::size_t c = 0; c < placement.choices.size(); ++c) {
      std::set<int> devices;
      for (const Mode& mode : placement.choices[c].modes) {
        for (const BlockChange& change : mode.changes) {
          const auto& own = placement.blocks[change.block].devices;
          devices.insert(own.begin(), own.end());
        }
      }
      for (const int d : devices) local_[d].push_back(static_cast<int>(c));
    }
  }

  struct Least {
    Nanoseconds value = 0;  ///< C2
    Assignment modes;       ///< kFree where the device has nothing to do with the choice
  };

  /// The least bound of all sets of modes that I1 and I2 do not rule out, as the checker has it; and of those
  /// for which an order may exist, the set with the least; the first of equals.
  Least of(int d) const {
    Least least{0, Assignment(placement_.choices.size(), kFree)};
    std::size_t sets = 1;
    for (const int c : local_[d])
      sets = std::min<std::size_t>(sets * placement_.choices[c].modes.size(), kMostSets + 1);
    if (sets > kMostSets) return least;
    Assignment modes = least.modes;
    for (const int c : local_[d]) modes[c] = 0;
    std::optional<Nanoseconds> stated, possible;
    std::string why;
    do {
      const Placement chosen = relaxed(placement_, modes);
      const Instance in(chosen);
      const Bounds bounds(in);
      if (const std::string reason = what_cannot_fit(in, bounds, micro_batches_); !reason.empty()) {
        why = reason;
        continue;
      }
      const Nanoseconds value = bounds.of(objective_, micro_batches_);
      stated = std::min(stated.value_or(value), value);
      if ((possible && value >= *possible) || !order_may_exist(in, bounds, why)) continue;
      possible = value;
      least.modes = modes;
    } while (next(d, modes));
    if (!possible) throw InfeasibleError(sets == 1 ? why : "with any modes: " + why);
    least.value = *stated;
    return least;
  }

 private:
  bool order_may_exist(const Instance& in, const Bounds& bounds, std::string& why) const {
    try {
      fitting_order(in, bounds, micro_batches_);
      return true;
    } catch (const InfeasibleError& error) {
      why = error.what();
      return false;
    }
  }

  bool next(int d, Assignment& modes) const {
    for (const int c : local_[d]) {
      if (++modes[c] < static_cast<int>(placement_.choices[c].modes.size())) return true;
      modes[c] = 0;
    }
    return false;
  }

  const Placement& placement_;
  Objective objective_;
  int micro_batches_;
  std::vector<std::vector<int>> local_;  ///< choices that change a block on the device
};

}  // namespace

ModesBound bound_over_modes(const Placement& placement, Objective objective, int micro_batches) {
  const DeviceModes modes(placement, objective, micro_batches);
  std::vector<DeviceModes::Least> least;
  for (std::size_t d = 0; d < placement.devices.size(); ++d) least.push_back(modes.of(static_cast<int>(d)));
  // Where devices share a choice, the one that binds most decides.
  std::stable_sort(least.begin(), least.end(),
                   [](const auto& a, const auto& b) { return a.value > b.value; });
  ModesBound result{least.front().value, Assignment(placement.choices.size(), kFree)};
  for (const auto& device : least) {
    for (std::size_t c = 0; c < result.guided.size(); ++c) {
      if (result.guided[c] == kFree) result.guided[c] = device.modes[c];
    }
  }
  std::replace(result.guided.begin(), result.guided.end(), kFree, 0);
  return result;
}

}  // namespace ostinato
