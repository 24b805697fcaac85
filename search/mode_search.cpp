// SPDX-License-Identifier: Apache-2.0
#include "search/mode_search.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "search/bounds/bounds.h"
#include "search/bounds/mode_bounds.h"
#include "search/files/error.h"
#include "search/leaner.h"
#include "search/plan/orders.h"
#include "search/shortest.h"

namespace ostinato {
namespace {

/// Percent of the usual work for one set of modes, and how many sets are searched.
constexpr int kShare = 10;
constexpr int kMostSearches = 64;
/// Sets of modes whose bound is computed.
constexpr int kMostBounds = 2000;

class ModeSearch {
 public:
  ModeSearch(const Placement& placement, const SearchOptions& options)
      : placement_(placement),
        options_(options),
        bound_(bound_over_modes(placement, options.objective, options.micro_batches)) {}

  Plan run() {
    for (const Assignment& assignment : families()) try_one(assignment, kShare);
    if (!best_) try_all();
    if (!best_) throw_none();
    descend();
    if (!proved()) {
      tried_.clear();
      searches_ = bounds_ = 0;
      try_one(Assignment(best_modes_), 100);
    }
    Plan plan = in_less_memory(with_modes(placement_, best_modes_),
                               left_after(options_, Clock::now() - began_), std::move(*best_));
    plan.modes = {taken_modes(placement_, best_modes_), makespan_bound()};
    plan.search.cut_by_limit = cut_ && best_value_ > bound_.value;
    return plan;
  }

 private:
  std::size_t choices() const { return placement_.choices.size(); }
  bool proved() const { return best_ && best_value_ <= bound_.value; }
  bool done() { return proved() || stopped() || searches_ >= kMostSearches || bounds_ >= kMostBounds; }
  /// Once there is a plan: before that, the first search ends by itself as soon as it has one.
  bool stopped() {
    cut_ = cut_ || (best_ && is_over(options_, Clock::now() - began_));
    return cut_;
  }

  Nanoseconds makespan_bound() const {
    if (options_.objective == Objective::makespan) return bound_.value;
    return bound_over_modes(placement_, Objective::makespan, options_.micro_batches).value;
  }

  /// Sets of modes that belong together, in the order in which they are tried.
  std::vector<Assignment> families() const {
    std::vector<Assignment> list = {Assignment(choices(), 0), bound_.guided};
    std::vector<Assignment> uniform;
    for (const Choice& choice : placement_.choices) {
      for (std::size_t m = 1; m < choice.modes.size(); ++m)
        uniform.push_back(all_named(choice.modes[m].name));
    }
    std::vector<Assignment> distinct;
    for (const Assignment& u : uniform) {
      if (std::find(distinct.begin(), distinct.end(), u) == distinct.end()) distinct.push_back(u);
    }
    list.insert(list.end(), distinct.begin(), distinct.end());
    // Under a memory limit the first stages of a pipeline hold most, so a border between the modes is likely.
    for (const Assignment& u : distinct) {
      for (std::size_t border = 1; border < choices(); ++border) {
        Assignment first = u, last = u;
        std::fill(first.begin() + static_cast<std::ptrdiff_t>(border), first.end(), 0);
        std::fill(last.begin(), last.begin() + static_cast<std::ptrdiff_t>(border), 0);
        list.push_back(std::move(first));
        list.push_back(std::move(last));
      }
    }
    return list;
  }

  Assignment all_named(const std::string& name) const {
    Assignment assignment(choices(), 0);
    for (std::size_t c = 0; c < choices(); ++c) {
      const auto& modes = placement_.choices[c].modes;
      for (std::size_t m = 0; m < modes.size(); ++m) {
        if (modes[m].name == name) assignment[c] = static_cast<int>(m);
      }
    }
    return assignment;
  }

  /// Where none of the families fits: every set of modes, as far as the searches last.
  void try_all() {
    Assignment assignment(choices(), 0);
    for (std::size_t c = 0; c < choices() && !best_ && !done();) {
      try_one(assignment, kShare);
      for (c = 0; c < choices(); ++c) {
        if (++assignment[c] < static_cast<int>(placement_.choices[c].modes.size())) break;
        assignment[c] = 0;
      }
    }
  }

  /// One choice changed at a time, until a whole round brings nothing.
  void descend() {
    for (bool better = true; better && !done();) {
      better = false;
      for (std::size_t c = 0; c < choices() && !done(); ++c) {
        for (std::size_t m = 0; m < placement_.choices[c].modes.size(); ++m) {
          Assignment changed = best_modes_;
          changed[c] = static_cast<int>(m);
          better = try_one(changed, kShare) || better;
        }
      }
    }
  }

  /// True if these modes gave the best plan so far.
  bool try_one(const Assignment& assignment, int share) {
    if (done() || !tried_.insert(assignment).second) return false;
    const Placement chosen = with_modes(placement_, assignment);
    if (best_ && share < 100 && bound_with(chosen) >= best_value_) return false;
    ++searches_;
    try {
      Plan plan = shortest_plan(chosen, share_of_options(share));
      cut_ = cut_ || plan.search.cut_by_limit;
      const Nanoseconds value = objective_value(options_.objective, chosen, plan.schedule);
      if (best_ && value >= best_value_) return false;
      best_ = std::move(plan);
      best_value_ = value;
      best_modes_ = assignment;
      return true;
    } catch (const InfeasibleError& error) {
      why_not_ = error.what();
      ++infeasible_;
    } catch (const UndecidedError&) {  // other modes may fit
    }
    return false;
  }

  Nanoseconds bound_with(const Placement& chosen) {
    ++bounds_;
    const Instance in(chosen);
    return Bounds(in).of(options_.objective, options_.micro_batches);
  }

  SearchOptions share_of_options(int share) {
    SearchOptions options = left_after(options_, Clock::now() - began_);
    options.effort = std::max(1, options_.effort * share / 100);
    if (options_.progress) {
      options.progress = [this](const Progress& p) {
        const Nanoseconds best = best_ ? std::min(best_value_, p.best) : p.best;
        options_.progress({best, bound_.value, seconds(), p.phase});
      };
    }
    return options;
  }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

  /// bound_over_modes() found no proof for all modes: only trying every one of them is another.
  [[noreturn]] void throw_none() const {
    std::int64_t all = 1;
    for (const Choice& choice : placement_.choices) {
      all = std::min<std::int64_t>(all * static_cast<std::int64_t>(choice.modes.size()), kMostSearches + 1);
    }
    if (infeasible_ == all) throw InfeasibleError("no set of modes fits (all were tried): " + why_not_);
    throw UndecidedError("no modes were found that fit the memory, but some may exist");
  }

  using Clock = std::chrono::steady_clock;

  const Placement& placement_;
  const SearchOptions& options_;
  const Clock::time_point began_ = Clock::now();
  const ModesBound bound_;
  std::optional<Plan> best_;
  Nanoseconds best_value_ = 0;
  Assignment best_modes_;
  std::set<Assignment> tried_;
  int searches_ = 0, bounds_ = 0;
  std::int64_t infeasible_ = 0;
  std::string why_not_;
  bool cut_ = false;
};

}  // namespace

Plan search_modes(const Placement& placement, const SearchOptions& options) {
  return ModeSearch(placement, options).run();
}

}  // namespace ostinato
