#pragma once
// What `ostinato plan` chooses from: placements of one model with one or several chunks per device, each
// searched.

#include <optional>
#include <string>
#include <vector>

#include "bindings/cli/run_search.h"
#include "search/partition/chain.h"

namespace ostinato::cli {

/// One placement to try. Either `searched` is there, or `why_not` says what spoke against it.
struct Candidate {
  std::string name;  ///< "looped, 2 chunks per device"
  PartitionOptions options;
  std::optional<Placement> placement;
  std::optional<Searched> searched;
  std::string why_not;
  bool infeasible = false;  ///< `why_not` is a proof

  Nanoseconds value() const;  ///< the plan's objective; only where searched
};

/// One chunk per device, then 2 .. max_chunks, each looped and as a wave.
std::vector<Candidate> list_candidates(const PartitionOptions& options, int max_chunks);

/// Partitions and searches all; the time limit is shared out among those that are left. After a signal the
/// rest is left untried. Throws InputError where not even one chunk per device can be partitioned for a
/// reason other than memory.
void try_candidates(const Profile& profile, const SearchOptions& options, const InterruptGuard& guard,
                    std::vector<Candidate>& candidates, Io& io);

/// Index of the smallest objective, the first of equals. Throws InfeasibleError where all were proved to be
/// impossible, else InputError with what spoke against each.
std::size_t best_candidate(const std::vector<Candidate>& candidates);

/// 1F1B on a placement, for comparison: nullopt where the placement does not admit it.
struct Baseline {
  Nanoseconds makespan = 0;
  bool fits = false;
};
std::optional<Baseline> one_f_one_b(const Placement& placement, int micro_batches);

}  // namespace ostinato::cli
