// SPDX-License-Identifier: Apache-2.0
#include "search/pareto.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include "search/bounds/bounds.h"
#include "search/bounds/feasible.h"
#include "search/bounds/statements.h"
#include "search/files/error.h"
#include "search/leaner.h"
#include "search/placement/capacity.h"
#include "search/plan/memory.h"
#include "search/plan/orders.h"
#include "search/plan/proved.h"
#include "search/shortest.h"

namespace ostinato {
namespace {

/// Percent of the usual work for all points after the first together, and the least for one of them.
constexpr int kWorkOfAll = 400;
constexpr int kLeastWork = 10;
/// Work of the trial of all schedules (Trial::work) for a point, half a second, and of S4 (Windows::work).
constexpr std::int64_t kCertifyingWork = 10'000'000;
constexpr std::int64_t kSpanWork = 8'000'000;

/// The greatest common divisor of all amounts of memory: peaks differ by at least this.
Bytes grain_of(const Placement& placement) {
  Bytes grain = 0;
  const auto add = [&](Bytes amount) { grain = std::gcd(grain, amount); };
  for (const Device& device : placement.devices) add(device.static_memory);
  for (const Block& block : placement.blocks) {
    add(block.memory);
    add(block.workspace);
  }
  return std::max<Bytes>(grain, 1);
}

class Curve {
 public:
  Curve(const Placement& placement, const SearchOptions& options, int points)
      : placement_(placement), options_(options), points_(points), grain_(grain_of(placement)) {}

  ParetoCurve run() {
    offer(find(placement_, 100));
    find_least();
    std::optional<Plan> last;
    if (most_memory(curve_.plans.back()) > curve_.least) last = try_within(curve_.least);
    while (next_point()) {
    }
    if (last) {
      offer(std::move(*last));
    } else if (most_memory(curve_.plans.back()) > curve_.least) {
      curve_.least = most_memory(curve_.plans.back());
      curve_.least_proved = false;
    }
    for (Plan& plan : curve_.plans) claim(plan);
    keep_the_best();
    curve_.cut_by_limit =
        curve_.untried || std::any_of(curve_.plans.begin(), curve_.plans.end(),
                                      [](const Plan& plan) { return plan.search.cut_by_limit; });
    return std::move(curve_);
  }

 private:
  Plan find(const Placement& placement, int share) const {
    SearchOptions options = left_after(options_, Clock::now() - began_);
    options.effort = std::max(1, options_.effort * share / 100);
    return shortest_plan(placement, options);
  }

  void offer(Plan plan) { curve_.plans.push_back(std::move(plan)); }

  bool stopped() const { return is_over(options_, Clock::now() - began_); }

  /// Whether some order of one micro-batch fits; nothing where that is not known.
  std::optional<bool> fits(Bytes capacity) const {
    const Placement smaller = within_capacity(placement_, capacity);
    const Instance in(smaller);
    const Bounds bounds(in);
    try {
      if (fitting_order(in, bounds, options_.micro_batches).empty()) return std::nullopt;
      return true;
    } catch (const InfeasibleError&) {
      return false;
    }
  }

  /// By bisection: more memory never makes an order unfit.
  void find_least() {
    Bytes below = -1;
    curve_.least = most_memory(curve_.plans.front());
    curve_.least_proved = true;
    while (curve_.least - below > 1) {
      const Bytes middle = below + (curve_.least - below) / 2;
      const std::optional<bool> fit = fits(middle);
      fit.value_or(false) ? curve_.least = middle : below = middle;
      if (!fit.value_or(false)) curve_.least_proved = fit.has_value();
    }
  }

  /// Searches within less memory than the last plan needs, above the least. False where there is no more, or
  /// no time.
  bool next_point() {
    const Bytes used = most_memory(curve_.plans.back());
    const int left = points_ - static_cast<int>(curve_.plans.size());  // the least is one of them
    const Bytes capacity = used - std::max<Bytes>(1, (used - curve_.least) / std::max(1, left));
    if (capacity <= curve_.least || left < 2) return false;
    if (stopped()) {
      curve_.untried = {curve_.least, used};
      return false;
    }
    std::optional<Plan> plan = try_within(capacity);
    if (!plan) return false;
    offer(std::move(*plan));
    return true;
  }

  /// A plan within `capacity`; nothing where none is found.
  std::optional<Plan> try_within(Bytes capacity) const {
    const Bytes levels = (most_memory(curve_.plans.front()) - curve_.least) / grain_ + 1;
    const int share = static_cast<int>(kWorkOfAll / std::min<Bytes>(points_, levels));
    try {
      return find(within_capacity(placement_, capacity), std::clamp(share, kLeastWork, 100));
    } catch (const InfeasibleError&) {
    } catch (const UndecidedError&) {
    }
    return std::nullopt;
  }

  Nanoseconds value(const Plan& plan) const {
    return objective_value(plan.objective, placement_, plan.schedule);
  }

  /// Drops every plan that another one beats or equals with less memory.
  void keep_the_best() {
    std::vector<Plan> kept;
    std::optional<Nanoseconds> best;
    for (auto plan = curve_.plans.rbegin(); plan != curve_.plans.rend(); ++plan) {
      const Nanoseconds own = value(*plan);
      if (best && own >= *best) continue;
      best = own;
      kept.push_back(std::move(*plan));
    }
    std::reverse(kept.begin(), kept.end());
    curve_.plans = std::move(kept);
  }

  /// What was proved for the capacity of the search holds for it alone: claim it there, and for the placement
  /// what holds for the placement. Plans come in the order of falling memory.
  void claim(Plan& plan) {
    shown_ = std::max(shown_, bound_of(plan));
    const Plan& first = curve_.plans.front();  // searched within the placement as it is
    if (&plan != &first) claim_as(placement_, first, plan);
    const Bytes memory = most_memory(plan);
    plan.capacity = proved_within(within_capacity(placement_, memory), memory);
    if (is_optimal(plan) || value(plan) == plan.capacity->lower_bound) plan.search.cut_by_limit = false;
  }

  /// What the statements prove of all plans within `memory`, or where it can be shown, the most that
  /// was proved within the memory of this plan or of one that needs more.
  WithinCapacity proved_within(const Placement& smaller, Bytes memory) const {
    const int n = options_.micro_batches;
    const Instance in(smaller);
    const Nanoseconds stated = Bounds(in).of(options_.objective, n);
    if (stated >= shown_) return {memory, stated};
    const Instance mirror = in.reversed();
    if (bound_by_windows(in, mirror, options_.objective, n, shown_, kSpanWork) >= shown_)
      return {memory, shown_};
    if (try_all(in, mirror, options_.objective, n, shown_, kCertifyingWork).verdict == Trial::none)
      return {memory, shown_, true};
    return {memory, stated};
  }

  using Clock = std::chrono::steady_clock;

  const Placement& placement_;
  const SearchOptions& options_;
  const int points_;
  const Bytes grain_;
  const Clock::time_point began_ = Clock::now();
  ParetoCurve curve_;
  Nanoseconds shown_ = 0;  ///< bound of the objective within the memory of some plan's search so far
};

}  // namespace

ParetoCurve pareto_memory(const Placement& placement, const SearchOptions& options, int points) {
  return Curve(placement, options, points).run();
}

}  // namespace ostinato
