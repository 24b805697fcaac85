// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/trial.h"

#include "search/portfolio/techniques.h"

namespace ostinato {
namespace {

/// Work (Trial::work) for the best makespan of a round: a fifth of a second, far below what the checker may
/// spend on the same.
constexpr std::int64_t kCertifyingWork = 4'000'000;
/// A trial that could not keep so many lists of all steps is not begun.
constexpr std::int64_t kFewestLists = 128;

}  // namespace

void try_all_schedules(Hunt& hunt, std::int64_t work) {
  if (hunt.options.objective == Objective::latency || hunt.best.empty() ||
      hunt.all_steps() * hunt.in.blocks() > work / kFewestLists)
    return;
  const Nanoseconds below = hunt.best.score().objective;
  if (below == hunt.not_certified && work <= hunt.share(kCertifyingWork)) return;
  const Trial tried = try_all(hunt.in, hunt.mirror, hunt.options.objective, hunt.options.micro_batches, below,
                              work, hunt.stop());
  hunt.not_certified = below;
  if (tried.verdict == Trial::none) hunt.claim_by_exhaustion(below);
}

const Technique techniques::kTrial = {
    "trial of all schedules", [](Hunt& hunt) { try_all_schedules(hunt, hunt.share(kCertifyingWork)); }};

}  // namespace ostinato
