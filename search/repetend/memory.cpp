// SPDX-License-Identifier: Apache-2.0
// The least memory at a given period (repetend.h).

#include <algorithm>

#include "search/repetend/modulo.h"
#include "search/repetend/repetend.h"

namespace ostinato {
namespace {

std::int64_t floor_divide(Nanoseconds value, Nanoseconds by) {
  return value >= 0 ? value / by : -((-value + by - 1) / by);
}

/// What device d holds at the start of item x, counted as in modulo.cpp. What takes or gives back in no time
/// has done so then.
__int128 held_at(const Instance& in, const Repetend& r, int d, std::size_t x) {
  const std::size_t blocks = in.blocks();
  const int own = static_cast<int>(x % blocks);
  __int128 held =
      (in.time(own) > 0 ? std::max<Bytes>(0, in.memory(own)) : in.memory(own)) + in.workspace(own);
  for (int copy = 0; copy < r.unroll; ++copy) {
    for (const int b : in.blocks_on(d)) {
      const std::size_t y = static_cast<std::size_t>(copy) * blocks + b;
      if (y == x || in.memory(b) == 0) continue;
      held += static_cast<__int128>(in.memory(b)) *
              (floor_divide(r.start[x] - r.start[y] - in.time(b), r.period) + 1);
    }
  }
  return held;
}

Bytes static_memory(const Instance& in, int d) { return in.placement().devices[d].static_memory; }

/// More is counted as this much, so that it can be added to static memory.
Bytes most_held(const Instance& in, int d) { return kUnlimited - 1 - static_memory(in, d); }

/// Some device's static memory is this: no repetend makes RepetendMemory::largest less.
Bytes least_largest(const Instance& in) {
  Bytes least = 0;
  for (int d = 0; d < in.devices(); ++d) least = std::max(least, static_memory(in, d));
  return least;
}

/// Within the placement's memory, and no device above `largest`.
ModuloLimits limits_below(const Instance& in, Bytes largest) {
  ModuloLimits limits;
  for (int d = 0; d < in.devices(); ++d) {
    limits.room.push_back(std::min(in.room(d), largest - static_memory(in, d)));
  }
  return limits;
}

/// Whether some device must hold `largest`: the matched bytes, for as long as one micro-batch alone holds
/// them, do not fit into a period of one byte less (P2 of docs/bounds.md, solved for the room).
bool proved_on_average(const Instance& in, const Repetend& r, Bytes largest) {
  const Compression compression = compress(in);
  std::vector<__int128> held(in.devices(), 0);
  for (const Compression::Match& m : compression.matches) {
    held[m.device] += static_cast<__int128>(m.bytes) * distances_from(in, m.take)[m.give];
  }
  for (int d = 0; d < in.devices() && compression.balanced; ++d) {
    const __int128 room = std::max<Bytes>(0, largest - 1 - static_memory(in, d));
    if (held[d] * r.unroll > room * r.period) return true;
  }
  return false;
}

}  // namespace

std::vector<Bytes> held_by(const Instance& in, const Repetend& r) {
  std::vector<Bytes> peak(in.devices(), 0);
  for (int d = 0; d < in.devices(); ++d) {
    __int128 most = 0;
    for (int copy = 0; copy < r.unroll; ++copy) {
      for (const int b : in.blocks_on(d)) most = std::max(most, held_at(in, r, d, copy * in.blocks() + b));
    }
    peak[d] = static_cast<Bytes>(std::min<__int128>(most, most_held(in, d)));
  }
  return peak;
}

RepetendMemory memory_of(const Instance& in, const Repetend& r) {
  RepetendMemory memory;
  const std::vector<Bytes> held = held_by(in, r);
  for (int d = 0; d < in.devices(); ++d) {
    memory.largest = std::max(memory.largest, held[d] + static_memory(in, d));
    memory.total += held[d];
  }
  return memory;
}

Repetend with_least_memory(const Instance& in, Repetend r, const RepetendOptions& options) {
  if (!searchable(in, r.unroll)) {
    r.memory_proved = proved_on_average(in, r, memory_of(in, r).largest);
    return r;
  }
  ModuloProblem problem(in, r.unroll);
  ModuloEffort effort{.work = options.work, .stop = options.stop};
  const auto improve = [&](const ModuloLimits& limits) {
    effort.nodes = options.nodes;
    const ModuloProblem::Outcome outcome = problem.solve(r.period, limits, effort);
    if (outcome == ModuloProblem::Outcome::found) r.start = problem.start();
    return outcome;
  };
  ModuloProblem::Outcome outcome = ModuloProblem::Outcome::found;
  while (outcome == ModuloProblem::Outcome::found) {
    const Bytes largest = memory_of(in, r).largest;
    outcome =
        largest > least_largest(in) ? improve(limits_below(in, largest - 1)) : ModuloProblem::Outcome::none;
  }
  r.memory_proved = outcome == ModuloProblem::Outcome::none;
  do {
    const RepetendMemory held = memory_of(in, r);
    ModuloLimits limits = limits_below(in, held.largest);
    limits.total = held.total - 1;
    outcome = improve(limits);
  } while (outcome == ModuloProblem::Outcome::found);
  return r;
}

}  // namespace ostinato
