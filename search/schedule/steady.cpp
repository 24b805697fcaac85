// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/steady.h"

#include <algorithm>

namespace ostinato {
namespace {

constexpr Nanoseconds kUneven = -1;

/// starts[i * blocks + b].
using Starts = std::vector<Nanoseconds>;

/// How much later micro-batch i + unroll starts than i, where that is the same for all blocks; else kUneven.
/// What lies within a part that is `known` to repeat is not looked at again.
std::vector<Nanoseconds> advances(const Starts& starts, std::size_t blocks, int micro_batches, int unroll,
                                  const SteadyState& known) {
  const bool multiple = known.count > 0 && unroll % known.unroll == 0;
  const int known_end = known.first + known.count * known.unroll;
  std::vector<Nanoseconds> advance;
  for (int i = 0; i + unroll < micro_batches; ++i) {
    if (multiple && i >= known.first && i + unroll < known_end) {
      advance.push_back(unroll / known.unroll * known.period);
      continue;
    }
    const Nanoseconds* from = &starts[static_cast<std::size_t>(i) * blocks];
    const Nanoseconds* to = from + unroll * blocks;
    const Nanoseconds first = to[0] - from[0];
    bool even = first > 0;
    for (std::size_t b = 1; even && b < blocks; ++b) even = to[b] - from[b] == first;
    advance.push_back(even ? first : kUneven);
  }
  return advance;
}

/// There is a window of one period in which every block repeats, and no block runs its micro-batches out of
/// order.
bool overlaps(const Starts& starts, std::size_t blocks, const SteadyState& steady) {
  Nanoseconds latest_first = 0;
  Nanoseconds earliest_last = std::numeric_limits<Nanoseconds>::max();
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto at = [&](int i) { return starts[static_cast<std::size_t>(i) * blocks + b]; };
    const int last = steady.first + (steady.count - 1) * steady.unroll;
    for (int i = steady.first; i + 1 < last + steady.unroll; ++i) {
      if (at(i) > at(i + 1)) return false;
    }
    latest_first = std::max(latest_first, at(steady.first + steady.unroll - 1));
    earliest_last = std::min(earliest_last, at(last));
  }
  return latest_first <= earliest_last;
}

}  // namespace

SteadyState find_steady_state(const Instance& in, int micro_batches,
                              const std::vector<ScheduledBlock>& schedule) {
  const std::size_t blocks = in.blocks();
  Starts starts(schedule.size());
  for (const ScheduledBlock& step : schedule) {
    starts[static_cast<std::size_t>(step.micro_batch) * blocks + step.block] = step.start;
  }
  SteadyState best;
  for (int unroll = 1; unroll <= std::min(kLargestUnroll, micro_batches / 2); ++unroll) {
    const std::vector<Nanoseconds> advance = advances(starts, blocks, micro_batches, unroll, best);
    for (std::size_t i = 0; i < advance.size();) {
      std::size_t end = i + 1;
      while (end < advance.size() && advance[end] == advance[i]) ++end;
      SteadyState run{advance[i], unroll, static_cast<int>(i), static_cast<int>(end - i) / unroll + 1};
      if (advance[i] != kUneven && run.count >= 2 && run.count * unroll > best.count * best.unroll &&
          overlaps(starts, blocks, run)) {
        best = run;
      }
      i = end;
    }
  }
  return best;
}

}  // namespace ostinato
