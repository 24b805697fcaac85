// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/run_search.h"

#include <chrono>

#include "bindings/cli/progress.h"
#include "bindings/core/requests.h"
#include "search/mode_search.h"
#include "search/search.h"
#include "search/shortest.h"
#include "search/unequal/unequal.h"

namespace ostinato::cli {
namespace {

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

Searched run_search(const Placement& placement, SearchOptions options, const InterruptGuard& guard,
                    const std::string& label, Io& io) {
  Searched searched;
  searched.plan = timed(placement, options, guard, label, io, searched.seconds,
                        [&] { return search(placement, options); });
  return searched;
}

Plan run_shortest(const Placement& placement, SearchOptions options, const InterruptGuard& guard,
                  const std::string& label, Io& io) {
  double seconds = 0;
  return timed(placement, options, guard, label, io, seconds,
               [&] { return shortest_plan(placement, options); });
}

Searched run_search_modes(const Placement& placement, SearchOptions options, const InterruptGuard& guard,
                          Io& io) {
  Searched searched;
  searched.plan = timed(placement, options, guard, "modes", io, searched.seconds,
                        [&] { return search_modes(placement, options); });
  return searched;
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

SearchedCurve run_pareto(const Placement& placement, SearchOptions options, int points, bool choose,
                         const InterruptGuard& guard, Io& io) {
  SearchedCurve searched;
  searched.curve = timed(placement, options, guard, "curve", io, searched.seconds,
                         [&] { return pareto_memory(placement, options, points, choose); });
  return searched;
}

ExitStatus status_of_cut(bool cut, bool strict, const InterruptGuard& guard) {
  if (!cut) return ExitStatus::done;
  if (guard.caught()) return ExitStatus::interrupted;
  return strict ? ExitStatus::stopped_at_limit : ExitStatus::done;
}

void add_strict(CommandLine& line, bool& strict) {
  line.flag("--strict", strict,
            "Exit status 5 where the limit cut the search; the best is written either way");
}

}  // namespace ostinato::cli
