// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/run_search.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "bindings/cli/progress.h"
#include "bindings/core/requests.h"
#include "search/search.h"
#include "search/shortest.h"
#include "search/unequal/unequal.h"

namespace ostinato::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// Seconds that a plan takes for each of its steps once it is found, and the part of a limit that they may
/// take.
constexpr double kWriting = 7e-7, kMostWriting = 0.6;
/// Seconds, beyond which a limit is as good as none: a clock holds it.
constexpr double kLongest = 1e8;
/// What may be printed without a look at the clock.
constexpr std::chrono::milliseconds kMoment{100};

/// Runs `find` with `options` joined to the terminal and to Ctrl-C, and measures it.
template <typename Find>
auto timed(const Placement& placement, SearchOptions& options, const InterruptGuard& guard,
           const std::string& label, Io& io, double& seconds, Find find) {
  check_size(placement, options.micro_batches, "");
  ProgressLine progress(io, label);
  options.progress = [&](const Progress& p) { progress.show(p); };
  options.stop = guard.flag();
  const auto began = std::chrono::steady_clock::now();
  auto found = find();
  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return found;
}

}  // namespace

Searched run_search(const Placement& placement, SearchOptions options, const InterruptGuard& guard, Io& io) {
  Searched searched;
  searched.plan =
      timed(placement, options, guard, "", io, searched.seconds, [&] { return search(placement, options); });
  return searched;
}

Plan run_shortest(const Placement& placement, SearchOptions options, const InterruptGuard& guard,
                  const std::string& label, Io& io) {
  double seconds = 0;
  return timed(placement, options, guard, label, io, seconds,
               [&] { return shortest_plan(placement, options); });
}

Searched run_search_unequal(const Placement& placement, const std::vector<MicroBatch>& sizes,
                            const SearchOptions& options, bool keep_order, const InterruptGuard& guard) {
  UnequalOptions wanted = unequal_options(options);
  wanted.keep_order = keep_order;
  wanted.stop = guard.flag();
  Searched searched;
  const auto began = std::chrono::steady_clock::now();
  searched.plan = search_unequal(placement, sizes, wanted);
  searched.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return searched;
}

SearchedCurve run_pareto(const Placement& placement, SearchOptions options, int points,
                         const InterruptGuard& guard, Io& io) {
  SearchedCurve searched;
  searched.curve = timed(placement, options, guard, "curve", io, searched.seconds,
                         [&] { return pareto_memory(placement, options, points); });
  return searched;
}

SearchOptions CommandTime::to_search(SearchOptions options, std::int64_t steps) const {
  const double writing =
      std::min(static_cast<double>(steps) * kWriting, options.time_limit_seconds * kMostWriting);
  return left_after(std::move(options), Clock::now() - began_ + Seconds(writing));
}

std::optional<Clock::time_point> CommandTime::to_print(const SearchOptions& options) const {
  if (options.time_limit_seconds <= 0) return std::nullopt;
  const Seconds limit(std::min(options.time_limit_seconds, kLongest));
  return std::max(began_ + std::chrono::duration_cast<Clock::duration>(limit), Clock::now() + kMoment);
}

ExitStatus status_of_cut(bool cut, bool strict, const InterruptGuard& guard) {
  if (!cut) return ExitStatus::done;
  if (guard.caught()) return ExitStatus::interrupted;
  return strict ? ExitStatus::stopped_at_limit : ExitStatus::done;
}

void add_strict(CommandLine& line, bool& strict) {
  line.flag("--strict", strict,
            "Exit with status 5 if a limit stopped the search early; the best result is written either way");
}

}  // namespace ostinato::cli
