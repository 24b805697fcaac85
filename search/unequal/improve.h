// SPDX-License-Identifier: Apache-2.0
#pragma once
// From a schedule of unequal micro-batches to a shorter one: moves on its critical path, some for the worse.

#include <cstdint>
#include <functional>

#include "search/unequal/sequence.h"

namespace ostinato::unequal {

struct Effort {
  Nanoseconds enough = 0;         ///< it ends when the makespan is this short
  std::int64_t work = 1'000'000;  ///< Sequence::work()
  std::uint64_t seed = 0;         ///< of all that is random; the same seed gives the same schedule
  Nanoseconds heat = 0;  ///< 256ths of nanoseconds by which a move may be worse at first, about, in the mean
  std::function<bool()> stop = {};  ///< asked now and then; empty: never
};

/// Simulated annealing (Kirkpatrick, Gelatt, Vecchi 1983) over moves that reverse an arc of a longest path
/// (van Laarhoven, Aarts, Lenstra 1992), and over exchanges of two micro-batches. `now` ends with the best
/// schedule found, never worse than it began. True where `stop` ended it.
bool improve(const Jobs& jobs, Sequence& now, const Effort& effort);

}  // namespace ostinato::unequal
