// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a search is asked for, and what it says while it runs.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "search/plan/plan.h"

namespace ostinato {

/// What one technique cost and brought to a search: `ostinato search --explain`.
struct Contribution {
  std::string technique;  ///< as docs/search.md calls it
  int runs = 0;
  double seconds = 0;
  Nanoseconds before = 0;  ///< the best objective before its first run; 0: there was none
  Nanoseconds after = 0;   ///< the best objective that it found; 0: none that was less
  Nanoseconds bound = 0;   ///< of the objective, where it raised it; else 0
};

struct Progress {
  Nanoseconds best = 0;   ///< objective of the best plan so far
  Nanoseconds bound = 0;  ///< proven lower bound of the objective
  double seconds = 0;     ///< since the search began
  const char* phase = "";
};

struct SearchOptions {
  int micro_batches = 1;
  Objective objective = Objective::makespan;
  double time_limit_seconds = 10;  ///< <= 0: no limit
  int threads = 1;                 ///< the plan does not depend on it
  std::uint64_t seed = 0;
  /// Percent of the usual work of a search that does not meet its bound. Above 100: searches of growing
  /// effort in turn, until one meets it.
  int effort = 100;
  Nanoseconds below = 0;        ///< only plans whose objective is below this are wanted; 0: any
  std::int64_t robust_ppm = 0;  ///< > 0: as short a plan for times that vary by up to this (robust.h)
  std::string method = "auto";  ///< or the name of one schedule (named.h)
  std::function<void(const Progress&)> progress = {};
  const std::atomic<bool>* stop = nullptr;  ///< set it (Ctrl-C) and search returns the best plan so far
  std::vector<Contribution>* contributions = nullptr;  ///< filled where it is there
};

/// A stop was asked for, or the time limit is `spent`.
inline bool is_over(const SearchOptions& options, std::chrono::duration<double> spent) {
  return (options.stop && options.stop->load(std::memory_order_relaxed)) ||
         (options.time_limit_seconds > 0 && spent.count() > options.time_limit_seconds);
}

/// The same once `spent` of the time limit is over; a millisecond is always left.
inline SearchOptions left_after(SearchOptions options, std::chrono::duration<double> spent) {
  if (options.time_limit_seconds > 0)
    options.time_limit_seconds = std::max(1e-3, options.time_limit_seconds - spent.count());
  return options;
}

/// No order that fits the memory was found within the work or the time allowed, and no proof that there is
/// none: unlike InfeasibleError, it says nothing about the placement. `what()` says what was tried.
class UndecidedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ostinato
