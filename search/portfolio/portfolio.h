// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which techniques run, in which order, and when it is enough.
//
//   Portfolio portfolio(instance, bounds, {.micro_batches = 32});
//   portfolio.run();
//   portfolio.best().schedule()
//
// Named schedules first: the result is never worse than any of them. Then repetends with their completion and
// beam searches of the whole horizon, in rounds of growing width, until the best meets its bound or the work
// is used up; where the bound is met early, repetends are still tried for less memory. Work is counted, not
// timed, so a search that ends by itself gives the same plan on every machine; within a round the parts run
// on any number of threads and are taken in a fixed order.

#include <functional>
#include <string>
#include <vector>

#include "search/portfolio/hunt.h"
#include "search/portfolio/techniques.h"

namespace ostinato {

class Portfolio {
 public:
  /// The time limit counts from `began`.
  Portfolio(const Instance& instance, const Bounds& bounds, const SearchOptions& options,
            Hunt::Clock::time_point began = Hunt::Clock::now())
      : hunt_(instance, bounds, options, began) {}

  /// Fills best(). Throws InfeasibleError with its proof.
  void run();
  /// Only the schedule that options.method names. Throws InputError where it does not exist or fit.
  void run_named();

  /// A bound of the objective that is proved, before run().
  void claim(Nanoseconds bound) { hunt_.claim(bound); }
  /// A plan of all micro-batches, after run(). It is the best where nothing better was found.
  void offer(const Plan& known) { hunt_.best.offer(known.schedule, known.search.method); }

  /// Where the best was shown to be optimal in ways that the checker does not know, or not at all: tries all
  /// schedules, well within the work that `ostinato verify` spends.
  void certify();

  /// Named schedules that were not tried, because the time was up.
  const std::vector<std::string>& untried() const { return hunt_.untried; }
  const Claims& claims() const { return hunt_.claims(); }
  const Incumbent& best() const { return hunt_.best; }
  bool cut() const { return hunt_.cut(); }

 private:
  std::vector<int> shortest_in_all();
  void run_for_objective();
  void run_phases();
  bool mostly_ends() const;
  void run_rounds();
  bool settled_by_round(int width);
  void run_patiently();
  void run_with_more_repetends();
  bool of_span() const { return hunt_.options.objective == Objective::span; }
  void run(const Technique& technique);
  void measured(const char* technique, const std::function<void()>& run);

  Hunt hunt_;
};

}  // namespace ostinato
