#include "bindings/cli/run_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "bindings/cli/progress.h"
#include "search/mode_search.h"

namespace ostinato::cli {
namespace {

Objective objective_of(const std::string& name) {
  for (const Objective objective : {Objective::span, Objective::latency}) {
    if (name == to_string(objective)) return objective;
  }
  return Objective::makespan;
}

void check_size(const Placement& placement, int micro_batches) {
  constexpr std::int64_t kMostSteps = std::int64_t{1} << 29;
  const std::int64_t steps = static_cast<std::int64_t>(placement.blocks.size()) * micro_batches;
  if (steps <= kMostSteps) return;
  throw InputError("", 0,
                   fmt::format("{} blocks of {} micro-batches are {} steps; at most {} can be planned",
                               placement.blocks.size(), micro_batches, steps, kMostSteps));
}

/// Runs `find` with `options` joined to the terminal and to Ctrl-C, and measures it.
template <typename Find>
auto timed(const Placement& placement, SearchOptions& options, const InterruptGuard& guard,
           const std::string& label, Io& io, double& seconds, Find find) {
  check_size(placement, options.micro_batches);
  ProgressLine progress(io, label);
  options.progress = [&](const Progress& p) { progress.show(p); };
  options.stop = guard.flag();
  const auto began = std::chrono::steady_clock::now();
  auto found = find();
  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return found;
}

}  // namespace

SearchOptions search_options(const OptionSet& options, int micro_batches) {
  SearchOptions result;
  result.micro_batches = micro_batches;
  result.objective = objective_of(options.text("objective"));
  result.time_limit_seconds = static_cast<double>(options.scaled("time_limit", 1'000'000)) / 1e6;
  const std::int64_t threads = options.integer("threads");
  const unsigned all = std::max(1u, std::thread::hardware_concurrency());
  result.threads = static_cast<int>(threads == 0 ? all : threads);
  result.seed = static_cast<std::uint64_t>(options.integer("seed"));
  result.method = options.text("method");
  return result;
}

Searched run_search(const Placement& placement, SearchOptions options, const InterruptGuard& guard,
                    const std::string& label, Io& io) {
  Searched searched;
  searched.plan = timed(placement, options, guard, label, io, searched.seconds,
                        [&] { return search(placement, options); });
  return searched;
}

Searched run_search_modes(const Placement& placement, SearchOptions options, const InterruptGuard& guard,
                          Io& io) {
  Searched searched;
  searched.plan = timed(placement, options, guard, "modes", io, searched.seconds,
                        [&] { return search_modes(placement, options); });
  return searched;
}

SearchedCurve run_pareto(const Placement& placement, SearchOptions options, int points, bool choose,
                         const InterruptGuard& guard, Io& io) {
  SearchedCurve searched;
  searched.curve = timed(placement, options, guard, "curve", io, searched.seconds,
                         [&] { return pareto_memory(placement, options, points, choose); });
  return searched;
}

ExitStatus status_of(bool cut_by_limit, const InterruptGuard& guard) {
  if (!cut_by_limit) return ExitStatus::done;
  return guard.caught() ? ExitStatus::interrupted : ExitStatus::stopped_at_limit;
}

ExitStatus status_of(const Plan& plan, const InterruptGuard& guard) {
  return status_of(plan.search.cut_by_limit, guard);
}

}  // namespace ostinato::cli
