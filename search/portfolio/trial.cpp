// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/trial.h"

#include "search/portfolio/techniques.h"

namespace ostinato {
namespace {

/// Work (Trial::work), far below what the checker may spend on the same: half a second.
constexpr std::int64_t kCertifyingWork = 10'000'000;
/// A trial that could not keep so many lists of all steps is not begun.
constexpr std::int64_t kFewestLists = 128;

void try_all_schedules(Hunt& hunt) {
  const std::int64_t work = hunt.share(kCertifyingWork);
  if (hunt.options.objective == Objective::latency || hunt.best.empty() ||
      hunt.all_steps() * hunt.in.blocks() > work / kFewestLists)
    return;
  const Nanoseconds below = hunt.best.score().objective;
  const Trial tried = try_all(hunt.in, hunt.mirror, hunt.options.objective, hunt.options.micro_batches, below,
                              work, hunt.stop());
  if (tried.verdict == Trial::none) hunt.claim_by_exhaustion(below);
}

}  // namespace

const Technique techniques::kTrial = {"trial of all schedules", try_all_schedules};

}  // namespace ostinato
