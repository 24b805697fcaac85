#pragma once
// Which searches run, in which order, and when it is enough.
//
// Named schedules first: the result is never worse than any of them. Then beam searches of the whole horizon
// and repetends with their completion, in rounds of growing width, until the best meets its bound or the work
// is used up; where the bound is met early, repetends are still tried for less memory. Work is counted, not
// timed, so a search that ends by itself gives the same plan on every machine; within a round the parts run
// on any number of threads and are taken in a fixed order.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "search/bounds/bounds.h"
#include "search/placement/instance.h"
#include "search/repetend/repetend.h"
#include "search/schedule/beam.h"
#include "search/schedule/incumbent.h"
#include "search/schedule/propagation.h"
#include "search/search.h"

namespace ostinato {

class Portfolio {
 public:
  using Clock = std::chrono::steady_clock;

  /// The time limit counts from `began`.
  Portfolio(const Instance& instance, const Bounds& bounds, const SearchOptions& options,
            Clock::time_point began = Clock::now());

  /// Fills best(). Throws InfeasibleError with its proof.
  void run();
  /// Only the schedule that options.method names. Throws InputError where it does not exist or fit.
  void run_named();

  /// Where the best was shown to be optimal in ways that the checker does not know, or not at all: tries all
  /// schedules, well within the work that `ostinato verify` spends.
  void certify();

  /// Bounds that docs/bounds.md states: what the plan may claim.
  struct Claims {
    Nanoseconds makespan = 0;
    Nanoseconds objective = 0;
    bool by_exhaustion = false;  ///< the objective, which is not the latency then
  };
  const Claims& claims() const { return claims_; }
  const Incumbent& best() const { return best_; }
  bool cut() const { return cut_; }

 private:
  /// What one part of a round found: sequences of blocks (the i-th mention is micro-batch i).
  struct Found {
    std::vector<std::vector<int>> sequences;
    std::int64_t work = 0;
    bool truncated = false;  ///< a wider search may find more
  };
  struct Part {
    std::string method;
    std::function<Found()> run;
  };

  void run_phases();
  void try_named();
  void try_sequential();
  void try_rigid();
  void try_dispatch();
  void try_justified();
  void try_moves(std::uint64_t seed);
  void find_repetends();
  void spare_memory();
  void look_at_windows();
  void claim(Nanoseconds bound);
  void round(int width);
  bool certified(std::int64_t work);
  bool exhausted(int width);
  void run_parts(const std::vector<Part>& parts, const char* phase);
  Found whole_horizon_beam(const BeamGoal& goal, bool backwards, int width, int flavour);
  std::vector<int> repeated(const Repetend& repetend) const;
  Found completed(const Repetend& repetend, int width);
  bool few() const { return micro_batches_ < options_.micro_batches; }
  /// Of work that is usual: SearchOptions::effort percent.
  std::int64_t share(std::int64_t work) const { return work / 100 * options_.effort; }
  bool affordable(std::int64_t work) const { return work <= work_left_; }
  bool proved();
  BeamGoal horizon(bool backwards) const;
  bool stopped();
  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }
  void report(const char* phase);

  const Instance& in_;
  const Instance mirror_;
  const Bounds& bounds_;
  const SearchOptions& options_;
  const Clock::time_point began_;
  Claims claims_;
  Nanoseconds bound_;  ///< of the objective: claimed, or proved by the search alone
  bool windows_known_ = false;
  int micro_batches_;              ///< that are scheduled: at first as few as represent all (stretch.h)
  Nanoseconds not_certified_ = 0;  ///< objective for which that trial was too long
  Incumbent best_;
  std::optional<Propagation>
      common_;             ///< of all that is better than best_; absent: too large, or no makespan
  Nanoseconds limit_ = 0;  ///< what common_ was last run with
  std::vector<Repetend> repetends_;
  std::int64_t work_left_;
  bool truncated_ = false;  ///< in the last round
  std::atomic<bool> cut_ = false;
};

}  // namespace ostinato
