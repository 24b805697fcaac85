#include "bindings/cli/run_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "bindings/cli/progress.h"

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

}  // namespace

SearchOptions search_options(const OptionSet& options, int micro_batches) {
  if (micro_batches < 1)
    throw UsageError(fmt::format("--micro-batches needs at least 1, got {}", micro_batches));
  SearchOptions result;
  result.micro_batches = micro_batches;
  result.objective = objective_of(options.text("objective"));
  result.time_limit_seconds = static_cast<double>(options.scaled("time_limit", 1'000'000)) / 1e6;
  const std::int64_t threads = options.integer("threads");
  const unsigned all = std::max(1u, std::thread::hardware_concurrency());
  result.threads = static_cast<int>(threads == 0 ? all : std::min<std::int64_t>(threads, 1024));
  result.seed = static_cast<std::uint64_t>(options.integer("seed"));
  result.method = options.text("method");
  return result;
}

Searched run_search(const Placement& placement, SearchOptions options, const InterruptGuard& guard,
                    const std::string& label, Io& io) {
  check_size(placement, options.micro_batches);
  ProgressLine progress(io, label);
  options.progress = [&](const Progress& p) { progress.show(p); };
  options.stop = guard.flag();
  const auto began = std::chrono::steady_clock::now();
  Searched searched{search(placement, options), 0};
  searched.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return searched;
}

ExitStatus status_of(const Plan& plan, const InterruptGuard& guard) {
  if (!plan.search.cut_by_limit) return ExitStatus::done;
  return guard.caught() ? ExitStatus::interrupted : ExitStatus::stopped_at_limit;
}

}  // namespace ostinato::cli
