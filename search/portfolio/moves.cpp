// SPDX-License-Identifier: Apache-2.0
#include "search/portfolio/techniques.h"
#include "search/schedule/group_starts.h"
#include "search/schedule/local_search.h"

namespace ostinato {
namespace {

/// Steps that the local search may look at, once before each round: a tenth of a second.
constexpr std::int64_t kMovingWork = 5'000'000;
/// A move looks at all steps, once for each group of the objective, and fewer than this many moves are not
/// worth it.
constexpr std::int64_t kFewestMoves = 100;

bool worth_it(const Hunt& hunt) {
  const int groups = groups_of(hunt.options.objective, hunt.in, hunt.micro_batches);
  return kFewestMoves * hunt.steps() * groups <= hunt.share(kMovingWork);
}

/// Changes the best schedule on its critical path. A new width is a new seed, which tries what the last did
/// not. A schedule that is to be repeated is left alone: the moves care for the objective, not for what
/// repeats.
void try_moves(Hunt& hunt) {
  if (hunt.few() || hunt.best.empty() || !worth_it(hunt) || hunt.proved() || hunt.stopped()) return;
  LocalSearchOptions options{.objective = hunt.options.objective,
                             .give_up = hunt.bound(),
                             .work = hunt.share(kMovingWork),
                             .seed = static_cast<std::uint64_t>(hunt.width)};
  options.stop = hunt.stop();
  const LocalSearchResult found = local_search(hunt.in, hunt.micro_batches, hunt.best.sequence(), options);
  if (options.objective == Objective::makespan) {
    hunt.best.offer(found.sequence, "local search");
  } else {
    hunt.best.offer(found.schedule, "local search");
  }
}

}  // namespace

const Technique techniques::kLocalSearch = {"local search", try_moves};

}  // namespace ostinato
