// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "search/files/error.h"
#include "search/portfolio/portfolio.h"
#include "search/portfolio/techniques.h"
#include "search/schedule/shift.h"

namespace ostinato {
namespace {

/// Pairs of blocks of one device that are compared to find the least interval of a repetition.
constexpr std::int64_t kComparedBlocks = 1 << 20;
bool intervals_affordable(const Instance& in) {
  std::int64_t pairs = 0;
  for (int d = 0; d < in.devices(); ++d) {
    const auto blocks = static_cast<std::int64_t>(in.blocks_on(d).size());
    pairs += blocks * blocks;
  }
  return pairs <= kComparedBlocks;
}

/// For the latency: the best schedule of one micro-batch, started again as soon as no two meet and the memory
/// allows.
void try_repeated(Hunt& hunt) {
  if (hunt.options.objective != Objective::latency || hunt.micro_batches == 1) return;
  SearchOptions options = hunt.options;
  options.micro_batches = 1;
  options.objective = Objective::makespan;
  options.progress = {};
  options.contributions = nullptr;
  if (options.time_limit_seconds > 0)
    options.time_limit_seconds = std::max(1e-3, options.time_limit_seconds - hunt.seconds());
  Portfolio one(hunt.in, hunt.bounds, options);
  try {
    one.run();
  } catch (const InfeasibleError&) {  // of one alone: other ones may give back what it takes
    return;
  }
  if (one.best().empty()) return;
  std::vector<Nanoseconds> start(hunt.in.blocks());
  for (const ScheduledBlock& s : one.best().schedule()) start[s.block] = s.start;
  const Nanoseconds after_the_end = one.best().score().makespan;
  Nanoseconds interval = intervals_affordable(hunt.in) ? hunt.bounds.period(1) : after_the_end;
  for (bool taken = false; !taken && interval <= after_the_end; interval += interval / 16 + 1) {
    if (interval < after_the_end) interval = least_interval(hunt.in, start, interval);
    std::vector<ScheduledBlock> schedule;
    for (int i = 0; i < hunt.micro_batches; ++i) {
      for (int b = 0; b < hunt.in.blocks(); ++b) schedule.push_back({b, i, start[b] + i * interval});
    }
    sort_schedule(hunt.in.placement(), schedule);
    taken = hunt.best.offer(std::move(schedule), "one micro-batch, repeated");
  }
}

}  // namespace

const Technique techniques::kRepeated = {"one micro-batch, repeated", try_repeated};

}  // namespace ostinato
