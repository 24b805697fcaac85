// SPDX-License-Identifier: Apache-2.0
#include "search/simulate/simulate.h"

#include <algorithm>

#include "search/files/error.h"
#include "search/numbers/random.h"
#include "search/simulate/step_graph.h"

namespace ostinato {
namespace {

constexpr std::int64_t kMillion = 1'000'000;

/// A uniform number in [-range, range], the same for the same seed, run and step wherever it is asked for.
std::int64_t vary(std::uint64_t seed, int run, int step, std::int64_t range) {
  const std::uint64_t bits =
      mixed(mixed(mixed(seed) + static_cast<std::uint64_t>(run)) + static_cast<std::uint64_t>(step));
  const auto width = static_cast<unsigned __int128>(2 * range + 1);
  return static_cast<std::int64_t>((width * bits) >> 64) - range;
}

/// time * millionths / 10^6, to the nearest nanosecond.
__int128 scale_wide(Nanoseconds time, std::int64_t millionths) {
  return (static_cast<__int128>(time) * millionths + kMillion / 2) / kMillion;
}
Nanoseconds scale(Nanoseconds time, std::int64_t millionths) {
  return static_cast<Nanoseconds>(scale_wide(time, millionths));
}

/// The makespan of one replay. `ends` is room for the end of every step.
Nanoseconds replay(const Placement& placement, const StepGraph& graph, const SimulateOptions& options,
                   int run, std::vector<Nanoseconds>& ends) {
  Nanoseconds last = 0;
  for (const int s : graph.order()) {
    Nanoseconds start = 0;
    for (const StepGraph::Edge& edge : graph.before(s)) {
      start = std::max(start, ends[edge.from] + scale(edge.transfer, options.transfer_ppm));
    }
    const std::int64_t share = kMillion + vary(options.seed, run, s, options.jitter_ppm);
    ends[s] = start + scale(placement.blocks[graph.step(s).block].time, share);
    last = std::max(last, ends[s]);
  }
  return last;
}

/// Refuses times that a replay could make longer than int64 holds, one step after another.
void check_longest(const Placement& placement, int micro_batches, const SimulateOptions& options) {
  __int128 longest = 0;
  for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
    const Block& block = placement.blocks[b];
    longest += scale_wide(block.time, kMillion + options.jitter_ppm);
    for (const Dependency& input : block.after)
      longest += scale_wide(placement.transfer(input, static_cast<int>(b)), options.transfer_ppm);
  }
  if (longest * micro_batches < std::numeric_limits<Nanoseconds>::max()) return;
  throw InputError("", 0,
                   "with these factors the times of all steps together exceed 2^63 nanoseconds; "
                   "give a smaller --transfer-factor");
}

}  // namespace

Simulation simulate(const Placement& placement, int micro_batches,
                    const std::vector<ScheduledBlock>& schedule, const SimulateOptions& options) {
  check_longest(placement, micro_batches, options);
  const StepGraph graph(placement, micro_batches, orders_of(placement, schedule));
  Simulation result;
  result.planned = makespan_of(placement, schedule);
  std::vector<Nanoseconds> ends(graph.size(), 0);
  for (int run = 0; run < options.runs; ++run) {
    result.makespans.push_back(replay(placement, graph, options, run, ends));
  }
  std::sort(result.makespans.begin(), result.makespans.end());
  return result;
}

}  // namespace ostinato
