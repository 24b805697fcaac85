#pragma once
// The schedule search: the repetend, its warm-up and its cool-down, together, with proven bounds.
//
//   SearchOptions options{.micro_batches = 32, .time_limit_seconds = 10};
//   Plan plan = search(placement, options);       // throws InfeasibleError with the proof
//
// Source: Tessel (arXiv 2311.15269), sections 4 and 5. docs/search.md says how it works and what is proved.

#include <atomic>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato {

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
  int effort = 100;             ///< percent of the usual work of a search that does not meet its bound
  std::string method = "auto";  ///< or the name of one schedule (named.h)
  std::function<void(const Progress&)> progress = {};
  const std::atomic<bool>* stop = nullptr;  ///< set it (Ctrl-C) and search returns the best plan so far
};

/// No order that fits the memory was found within the work or the time allowed, and no proof that there is
/// none: unlike InfeasibleError, it says nothing about the placement. `what()` says what was tried.
class UndecidedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The best plan found. Never worse than any named schedule that the placement admits under its memory.
/// Throws InfeasibleError (with the proof) where no order fits, UndecidedError where neither an order nor a
/// proof was found, InputError where the options contradict the placement. `placement_sha256` of the result
/// is left empty: the caller knows the file.
Plan search(const Placement& placement, const SearchOptions& options);

}  // namespace ostinato
