// SPDX-License-Identifier: Apache-2.0
#pragma once
// The search as `search` and `plan` call it: with progress and Ctrl-C.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "bindings/cli/command_line.h"
#include "bindings/cli/interrupt.h"
#include "search/pareto.h"
#include "search/placement/placement.h"
#include "search/plan/plan.h"
#include "search/search.h"

namespace ostinato::cli {

struct Searched {
  Plan plan;
  double seconds = 0;
};

struct SearchedCurve {
  ParetoCurve curve;
  double seconds = 0;
};

/// Searches until done, the limit, or a signal that `guard` caught. Throws what search() throws, and
/// InputError for more steps than it can hold.
Searched run_search(const Placement& placement, SearchOptions options, const InterruptGuard& guard, Io& io);

/// The same for the shortest plan alone, whatever memory it takes: one candidate of many. `label` stands in
/// the progress line.
Plan run_shortest(const Placement& placement, SearchOptions options, const InterruptGuard& guard,
                  const std::string& label, Io& io);

/// The same for micro-batches of unequal size; effort and time limit of `options` count.
Searched run_search_unequal(const Placement& placement, const std::vector<MicroBatch>& sizes,
                            const SearchOptions& options, bool keep_order, const InterruptGuard& guard);

/// The same for every point of the curve.
SearchedCurve run_pareto(const Placement& placement, SearchOptions options, int points,
                         const InterruptGuard& guard, Io& io);

/// A time limit is for the whole command, from when this is made: it reads, searches, writes and prints.
class CommandTime {
 public:
  /// The options with what is left to search: reading took its part, writing a plan of this many steps will.
  SearchOptions to_search(SearchOptions options, std::int64_t steps) const;
  /// When the limit of the options is over, but not sooner than a moment from now; nullopt: it has none.
  std::optional<std::chrono::steady_clock::time_point> to_print(const SearchOptions& options) const;

 private:
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

/// Of what was cut and is written all the same: 130 after a signal, with --strict 5 at the limit, else 0.
ExitStatus status_of_cut(bool cut, bool strict, const InterruptGuard& guard);

/// Declares --strict, which the commands that search share.
void add_strict(CommandLine& line, bool& strict);

}  // namespace ostinato::cli
