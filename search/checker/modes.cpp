// SPDX-License-Identifier: Apache-2.0
#include "search/checker/modes.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "search/checker/fits.h"
#include "search/checker/prove.h"

namespace ostinato::checker {
namespace {

/// Sets of modes on one device that are looked at; beyond it the device proves nothing.
constexpr int kMostSets = 64;
constexpr int kFree = -1;  ///< of a choice: any of its modes may be taken

bool is_on(const Block& block, int device) {
  return std::binary_search(block.devices.begin(), block.devices.end(), device);
}

bool touches(const Placement& placement, const Choice& choice, int device) {
  for (const Mode& mode : choice.modes) {
    for (const BlockChange& change : mode.changes) {
      if (is_on(placement.blocks[change.block], device)) return true;
    }
  }
  return false;
}

/// C1: what holds of every set of modes that agrees with `fixed` (a mode or kFree per choice). Blocks that
/// may be absent are left in without time, edges or memory, so that indices stay.
Placement relaxed(const Placement& placement, const std::vector<int>& fixed) {
  Placement result = placement;
  std::vector<char> gone(placement.blocks.size(), 0);
  for (std::size_t c = 0; c < fixed.size(); ++c) {
    for (std::size_t m = 0; m < placement.choices[c].modes.size(); ++m) {
      if (fixed[c] != kFree && fixed[c] != static_cast<int>(m)) continue;
      for (const BlockChange& change : placement.choices[c].modes[m].changes) {
        Block& block = result.blocks[change.block];
        if (change.absent) gone[change.block] = 1;
        if (fixed[c] == kFree) {
          block.time = std::min(block.time, change.time.value_or(block.time));
          for (const int d : block.devices) result.devices[d].memory = kUnlimited;
        } else {
          block.time = change.time.value_or(block.time);
          block.memory = change.memory.value_or(block.memory);
          block.workspace = change.workspace.value_or(block.workspace);
        }
      }
    }
  }
  for (std::size_t b = 0; b < gone.size(); ++b) {
    Block& block = result.blocks[b];
    std::erase_if(block.after, [&](const Dependency& input) { return gone[b] || gone[input.block]; });
    if (gone[b]) block.time = block.memory = block.workspace = 0;
  }
  return result;
}

/// The next set of modes of `local` choices; false after the last.
bool next_set(const Placement& placement, const std::vector<int>& local, std::vector<int>& fixed) {
  for (const int c : local) {
    if (++fixed[c] < static_cast<int>(placement.choices[c].modes.size())) return true;
    fixed[c] = 0;
  }
  return false;
}

/// The least bound over all modes of the choices that `device` runs a block of.
Bound on_device(const Placement& placement, int device, Objective objective, int n) {
  std::vector<int> fixed(placement.choices.size(), kFree);
  std::vector<int> local;
  Wide sets = 1;
  for (std::size_t c = 0; c < fixed.size(); ++c) {
    if (!touches(placement, placement.choices[c], device)) continue;
    local.push_back(static_cast<int>(c));
    fixed[c] = 0;
    sets = std::min<Wide>(sets * static_cast<Wide>(placement.choices[c].modes.size()), kMostSets + 1);
  }
  if (sets > kMostSets) return {};
  Bound least;
  bool first = true;
  do {
    const Placement chosen = relaxed(placement, fixed);
    if (cannot_fit(Graph(chosen), n)) continue;
    const Bound bound = bound_of(Bounds(chosen), objective, n, std::numeric_limits<Nanoseconds>::max());
    if (first || bound.value < least.value) least = bound;
    first = false;
  } while (next_set(placement, local, fixed));
  least.why += fmt::format(", with any modes on device {}", device);
  return least;
}

Placement within(Placement placement, Bytes capacity) {
  for (Device& device : placement.devices) {
    if (device.lane_of < 0) device.memory = std::min(device.memory, capacity);
  }
  return placement;
}

/// A figure that is claimed to be beyond reach of `who`.
void check_claim(const char* key, const std::string& who, Nanoseconds claim, const Bound& proved,
                 Report& report) {
  if (proved.value < claim) {
    report.fail(fmt::format("{} is {} ns, but only {} ns are proved ({})", key, claim, to_text(proved.value),
                            proved.why));
  } else {
    report.pass(fmt::format("no schedule {} {} ns ({})", who, to_text(proved.value), proved.why));
  }
}

Bound prove_capacity(const Plan& plan, const Placement& smaller, std::int64_t most_work, Report& report) {
  const int n = plan.micro_batches;
  const Nanoseconds claim = plan.capacity->lower_bound;
  if (plan.modes) return bound_of_any_modes(smaller, plan.objective, n, claim);
  const Bounds bounds(smaller);
  if (plan.objective == Objective::latency) return bound_of(bounds, plan.objective, n, claim);
  const Nanoseconds known = plan.objective == Objective::span ? plan.span : plan.makespan;
  return prove(bounds, {"capacity.lower_bound", plan.objective, n, claim, known}, most_work, report);
}

void check_capacity(const Plan& plan, const Placement& placement, std::int64_t most_work, Report& report) {
  const Bytes memory = plan.capacity->memory;
  const Bound proved = prove_capacity(plan, within(placement, memory), most_work, report);
  const std::string what = plan.objective == Objective::makespan
                               ? "ends before"
                               : fmt::format("has a {} below", to_string(plan.objective));
  check_claim("capacity.lower_bound", fmt::format("within {} bytes on each device {}", memory, what),
              plan.capacity->lower_bound, proved, report);
}

}  // namespace

Bound bound_of_any_modes(const Placement& placement, Objective objective, int n, Wide enough) {
  Bound best;
  for (int d = 0; d < static_cast<int>(placement.devices.size()) && best.value < enough; ++d) {
    Bound bound = on_device(placement, d, objective, n);
    if (bound.value > best.value) best = std::move(bound);
  }
  return best;
}

void check_choice_claims(const Plan& plan, const Placement& placement, std::int64_t most_work,
                         Report& report) {
  if (plan.modes) {
    const Nanoseconds claim = plan.modes->lower_bound;
    check_claim("modes.lower_bound", "with any modes ends before", claim,
                bound_of_any_modes(placement, Objective::makespan, plan.micro_batches, claim), report);
  }
  if (plan.capacity) check_capacity(plan, placement, most_work, report);
}

}  // namespace ostinato::checker
