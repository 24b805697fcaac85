// SPDX-License-Identifier: Apache-2.0
#include "search/simulate/simulate.h"

#include <algorithm>
#include <optional>

#include "search/files/error.h"
#include "search/numbers/random.h"
#include "search/plan/one_batch.h"
#include "search/simulate/scaled_time.h"
#include "search/simulate/shared_replay.h"
#include "search/simulate/step_graph.h"

namespace ostinato {
namespace {

/// A uniform number in [-range, range], the same for the same seed, run and thing wherever it is asked for.
std::int64_t vary(std::uint64_t seed, int run, std::int64_t thing, std::int64_t range) {
  const std::uint64_t bits =
      mixed(mixed(mixed(seed) + static_cast<std::uint64_t>(run)) + static_cast<std::uint64_t>(thing));
  const auto width = 2 * static_cast<unsigned __int128>(range) + 1;
  return static_cast<std::int64_t>((width * bits) >> 64) - range;
}

/// The makespan of one replay where every device has its own processor.
Nanoseconds replay(const StepGraph& graph, const std::vector<Nanoseconds>& times, std::int64_t transfer_ppm) {
  std::vector<Nanoseconds> ends(graph.size(), 0);
  Nanoseconds last = 0;
  for (const int s : graph.order()) {
    Nanoseconds start = 0;
    for (const StepGraph::Edge& edge : graph.before(s)) {
      start = std::max(start, ends[edge.from] + scaled_time(edge.transfer, transfer_ppm));
    }
    ends[s] = start + times[s];
    last = std::max(last, ends[s]);
  }
  return last;
}

/// Refuses times that a replay could make longer than int64 holds, one step after another.
void check_longest(const Placement& placement, int micro_batches, const SimulateOptions& options) {
  __int128 longest = 0, ranks = 1;
  for (const Host& host : placement.hosts) ranks = std::max<__int128>(ranks, host.ranks);
  for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
    const Block& block = placement.blocks[b];
    longest += scaled_wide(block.time, kMillion + options.jitter_ppm) * (kMillion + options.unequal_ppm) /
               kMillion * (placement.hosts.empty() ? 1 : ranks * static_cast<__int128>(block.devices.size()));
    for (const Dependency& input : block.after)
      longest += scaled_wide(placement.transfer(input, static_cast<int>(b)), options.transfer_ppm);
  }
  if (longest * micro_batches < std::numeric_limits<Nanoseconds>::max()) return;
  throw InputError("", 0,
                   "with these factors the times of all steps together exceed 2^63 nanoseconds; "
                   "give a smaller --transfer-factor");
}

/// Of the hosts, with this much work for each of their devices; 0 without hosts.
__int128 busiest_host(const Placement& placement, const std::vector<__int128>& work) {
  __int128 most = 0;
  for (const Host& host : placement.hosts) {
    __int128 all = 0;
    for (const int d : host.devices) all += work[d] * host.ranks;
    most = std::max(most, (all + host.cores - 1) / host.cores);
  }
  return most;
}

/// Of what each device has to do where all begin at once.
Nanoseconds longest_on_hosts(const Placement& placement, const std::vector<Nanoseconds>& times) {
  const __int128 shared = busiest_host(placement, {times.begin(), times.end()});
  return static_cast<Nanoseconds>(std::max<__int128>(*std::ranges::max_element(times), shared));
}

/// Each `alike` steps are of one micro-batch: unrolled, all are blocks of a single one.
std::vector<Nanoseconds> varied(const Placement& placement, int micro_batches, std::size_t alike,
                                const SimulateOptions& options, int run) {
  std::vector<Nanoseconds> times;
  std::int64_t of_all = kMillion;
  for (int m = 0; m < micro_batches; ++m) {
    for (const Block& block : placement.blocks) {
      const std::int64_t step = static_cast<std::int64_t>(times.size());
      if (times.size() % alike == 0)
        of_all = kMillion +
                 vary(options.seed, run, -1 - step / static_cast<std::int64_t>(alike), options.unequal_ppm);
      const std::int64_t own = kMillion + vary(options.seed, run, step, options.jitter_ppm);
      times.push_back(scaled_time(scaled_time(block.time, own), of_all));
    }
  }
  return times;
}

Simulation replays(const Placement& placement, int micro_batches, std::size_t alike,
                   const std::vector<ScheduledBlock>& schedule, const SimulateOptions& options) {
  check_longest(placement, micro_batches, options);
  const StepGraph graph(placement, micro_batches, orders_of(placement, schedule));
  Simulation result;
  result.planned = makespan_of(placement, schedule);
  std::optional<SharedReplay> shared;
  if (!placement.hosts.empty()) shared.emplace(placement, graph);
  for (int run = 0; run < options.runs; ++run) {
    if (run > 0 && options.stop != nullptr && options.stop->load()) break;
    const std::vector<Nanoseconds> times = varied(placement, micro_batches, alike, options, run);
    result.makespans.push_back(shared ? shared->run(times, options.transfer_ppm)
                                      : replay(graph, times, options.transfer_ppm));
  }
  std::sort(result.makespans.begin(), result.makespans.end());
  return result;
}

}  // namespace

std::vector<Nanoseconds> varied_times(const Placement& placement, int micro_batches,
                                      const SimulateOptions& options, int run) {
  return varied(placement, micro_batches, placement.blocks.size(), options, run);
}

Simulation simulate(const Placement& placement, int micro_batches,
                    const std::vector<ScheduledBlock>& schedule, const SimulateOptions& options) {
  return replays(placement, micro_batches, placement.blocks.size(), schedule, options);
}

Simulation simulate(const Plan& plan, const Placement& placement, const SimulateOptions& options) {
  const OneBatch all = as_one_batch(plan, placement);
  return replays(all.placement, all.plan.micro_batches, placement.blocks.size(), all.plan.schedule, options);
}

Nanoseconds replayed_makespan(const Placement& placement, int micro_batches,
                              const std::vector<ScheduledBlock>& schedule) {
  return simulate(placement, micro_batches, schedule, {}).worst();
}

Nanoseconds whole_step(const Placement& placement, int micro_batches,
                       const std::vector<ScheduledBlock>& schedule, const std::vector<Nanoseconds>& times) {
  const Nanoseconds step = replayed_makespan(placement, micro_batches, schedule);
  if (times.empty()) return step;
  if (!placement.hosts.empty()) return step + longest_on_hosts(placement, times);
  Nanoseconds last = step;
  for (const ScheduledBlock& s : schedule) {
    const Block& block = placement.blocks[s.block];
    for (const int d : block.devices) {  // a lane has no parameters
      const Nanoseconds more = d < static_cast<int>(times.size()) ? times[d] : 0;
      last = std::max(last, s.start + block.time + more);
    }
  }
  return last;
}

Nanoseconds predicted_makespan(const Plan& plan, const Placement& placement) {
  if (placement.hosts.empty()) return plan.makespan;
  const OneBatch all = as_one_batch(plan, placement);
  return replayed_makespan(all.placement, all.plan.micro_batches, all.plan.schedule);
}

Nanoseconds whole_step(const Plan& plan, const Placement& placement, const std::vector<Nanoseconds>& times) {
  const OneBatch all = as_one_batch(plan, placement);
  return whole_step(all.placement, all.plan.micro_batches, all.plan.schedule, times);
}

Nanoseconds shared_work(const Placement& placement, int micro_batches) {
  std::vector<__int128> work(placement.devices.size(), 0);
  for (const Block& block : placement.blocks)
    for (const int d : block.devices) work[d] += static_cast<__int128>(block.time) * micro_batches;
  return static_cast<Nanoseconds>(
      std::min<__int128>(busiest_host(placement, work), std::numeric_limits<Nanoseconds>::max()));
}

}  // namespace ostinato
