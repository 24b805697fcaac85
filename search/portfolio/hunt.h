// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the techniques of a search share: the problem, the best so far, what is proved, and the work that is
// left.
//
//   Hunt hunt(instance, bounds, options, Hunt::Clock::now());
//   if (hunt.proved() || hunt.stopped()) return;
//   hunt.best.offer(sequence, "local search");

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "search/bounds/bounds.h"
#include "search/placement/instance.h"
#include "search/portfolio/search_options.h"
#include "search/repetend/repetend.h"
#include "search/schedule/beam.h"
#include "search/schedule/incumbent.h"
#include "search/schedule/propagation.h"

namespace ostinato {

/// Bounds that docs/bounds.md states: what the plan may claim.
struct Claims {
  Nanoseconds makespan = 0;
  Nanoseconds objective = 0;
  bool by_exhaustion = false;  ///< the objective, which is not the latency then
};

class Hunt {
 public:
  using Clock = std::chrono::steady_clock;

  /// The time limit counts from `began`.
  Hunt(const Instance& instance, const Bounds& bounds, const SearchOptions& options, Clock::time_point began);

  const Instance& in;
  const Instance mirror;  ///< with time reversed
  const Bounds& bounds;
  const SearchOptions& options;

  int micro_batches;  ///< that are scheduled: at first as few as represent all (stretch.h)
  Incumbent best;
  std::vector<Repetend> repetends;
  std::size_t justified = 0;  ///< of the repetends, as schedules of this many
  std::int64_t work_left;     ///< of beam searches
  int width = 0;              ///< of the round; 0: before the first
  bool truncated = false;     ///< in this round a wider search may find more
  bool exhausted = false;     ///< every schedule was covered: none is better than the best
  bool windows_known = false;
  Nanoseconds tried = 0;             ///< in rounds: below this objective all schedules were tried quickly
  std::vector<std::string> untried;  ///< named schedules, because the time was up

  /// Only few micro-batches are scheduled, which stand for all.
  bool few() const { return micro_batches < options.micro_batches; }
  std::int64_t steps() const { return static_cast<std::int64_t>(in.blocks()) * micro_batches; }
  std::int64_t all_steps() const { return static_cast<std::int64_t>(in.blocks()) * options.micro_batches; }
  /// SearchOptions::effort percent of the usual work.
  std::int64_t share(std::int64_t work) const { return work / 100 * options.effort; }
  bool affordable(std::int64_t work) const { return work <= work_left; }

  /// From now on all micro-batches are scheduled.
  void take_all();

  const Claims& claims() const { return claims_; }
  Nanoseconds bound() const { return bound_; }  ///< of the objective: claimed, or proved by the search alone
  /// A bound of the objective that the checker proves.
  void claim(Nanoseconds bound);
  /// The same, by the trial of all schedules.
  void claim_by_exhaustion(Nanoseconds bound);
  /// True if what must be beaten (the best plan, SearchOptions::below) meets the bound, which rises to it
  /// where nothing better can exist.
  bool proved();
  /// True if SearchOptions::below was not reached, and nothing below it exists.
  bool pointless();

  /// There is nothing better than one micro-batch after another.
  bool only_in_turn() const;

  bool cut() const { return cut_; }
  bool stopped();
  std::function<bool()> stop() {
    return [this] { return stopped(); };
  }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }
  void report(const char* phase) const;

  /// What a beam search of all micro-batches has to reach. Does not change while parts of a round run.
  BeamGoal horizon(bool backwards) const;
  /// The objective that a beam search must beat; 0: any.
  Nanoseconds limit() const { return limit_; }
  /// The same for any search: of the best plan, or SearchOptions::below; absent: any.
  std::optional<Nanoseconds> to_beat() const;

 private:
  const Clock::time_point began_;
  Claims claims_;
  Nanoseconds bound_;
  std::optional<Propagation> common_;  ///< of all that is better than best; absent: too large, or no makespan
  Nanoseconds limit_ = 0;              ///< what common_ was last run with
  std::atomic<bool> cut_ = false;
};

}  // namespace ostinato
