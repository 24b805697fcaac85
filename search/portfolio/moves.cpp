// SPDX-License-Identifier: Apache-2.0
#include "search/portfolio/techniques.h"
#include "search/schedule/local_search.h"

namespace ostinato {
namespace {

/// Steps that the local search may look at, once before each round: a tenth of a second.
constexpr std::int64_t kMovingWork = 5'000'000;
/// A move looks at all steps, and fewer than this many moves are not worth it.
constexpr std::int64_t kFewestMoves = 100;

/// Changes the best schedule on its critical path. A new width is a new seed, which tries what the last did
/// not. A schedule that is to be repeated is left alone: the moves care for the makespan, not for what
/// repeats.
void try_moves(Hunt& hunt) {
  const std::int64_t steps = hunt.steps();
  if (hunt.options.objective != Objective::makespan || hunt.micro_batches != hunt.options.micro_batches ||
      hunt.best.empty() || kFewestMoves * steps > hunt.share(kMovingWork) || hunt.proved() || hunt.stopped())
    return;
  LocalSearchOptions options{.give_up = hunt.bound(),
                             .work = hunt.share(kMovingWork),
                             .seed = static_cast<std::uint64_t>(hunt.width)};
  options.stop = hunt.stop();
  hunt.best.offer(local_search(hunt.in, hunt.micro_batches, hunt.best.sequence(), options).sequence,
                  "local search");
}

}  // namespace

const Technique techniques::kLocalSearch = {"local search", try_moves};

}  // namespace ostinato
