// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tabu search over words: from a schedule to a shorter one by moves on its critical path.
//
//   LocalSearchOptions options{.give_up = bound, .seed = 1};
//   LocalSearchResult found = local_search(in, 12, sequence, options);    // found.value
//
// Only a move that turns round an arc of every longest path can make a schedule shorter, so the moves are
// those within runs of critical steps on one device: neighbours change places, and a step goes to an end of
// its run (Dell'Amico, Trubian 1993; Nowicki, Smutnicki 1996; Balas, Vazacopoulos 1998). The best estimate is
// taken, better or not; what it turned round stays so for a while. Where nothing better was found for long,
// it goes on from the best with a few moves at random. The memory of each device is kept at every move.

#include <cstdint>
#include <functional>
#include <vector>

#include "search/placement/instance.h"
#include "search/plan/plan.h"

namespace ostinato {

struct LocalSearchOptions {
  Objective objective = Objective::makespan;
  Nanoseconds give_up = 0;          ///< it ends when the objective is this short
  std::int64_t work = 5'000'000;    ///< steps that may be looked at
  std::uint64_t seed = 0;           ///< of all that is random; the same seed gives the same schedule
  int shake = 0;                    ///< moves at random before it begins
  std::function<bool()> stop = {};  ///< asked now and then; empty: never
};

struct LocalSearchResult {
  std::vector<int> sequence;  ///< blocks by start; the i-th mention of a block is its micro-batch i
  std::vector<ScheduledBlock> schedule;  ///< the same with the starts that reach the value
  Nanoseconds value = 0;                 ///< of the objective
  std::int64_t work = 0;  ///< steps that were looked at: a clock that runs alike on every machine
};

/// `sequence` as the result's, within the memory. Never worse than it. O(work).
LocalSearchResult local_search(const Instance& instance, int micro_batches, const std::vector<int>& sequence,
                               const LocalSearchOptions& options);

}  // namespace ostinato
