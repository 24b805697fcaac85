// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/trial.h"

#include <algorithm>
#include <utility>

#include "search/portfolio/techniques.h"

namespace ostinato {
namespace {

/// Work (Trial::work): half a second. And the most with any effort, well below what the checker may spend on
/// the same (kMostExhaustionWork).
constexpr std::int64_t kCertifyingWork = 10'000'000, kMostWork = 4 * kCertifyingWork;
/// Most proofs take less than a tenth of it, and half of them less than a hundredth: so rounds of other
/// techniques, and the first of them, wait for a share.
constexpr int kBeforeRounds = 100, kInRounds = 16;
/// If all of it could not keep this many lists of all steps, no trial is begun.
constexpr std::int64_t kFewestLists = 128;

std::int64_t certifying_work(const Hunt& hunt) { return std::min(kMostWork, hunt.share(kCertifyingWork)); }

void try_with(Hunt& hunt, std::int64_t work) {
  if (hunt.options.objective == Objective::latency || hunt.few() || hunt.best.empty() ||
      hunt.all_steps() * hunt.in.blocks() > certifying_work(hunt) / kFewestLists)
    return;
  const Nanoseconds below = hunt.best.score().objective;
  const Trial tried = try_all(hunt.in, hunt.mirror, hunt.options.objective, hunt.options.micro_batches, below,
                              work, hunt.stop());
  if (tried.verdict == Trial::none) hunt.claim_by_exhaustion(below);
}

void try_all_schedules(Hunt& hunt) { try_with(hunt, certifying_work(hunt)); }

void try_quickly(Hunt& hunt) {
  if (hunt.width == 0) return try_with(hunt, certifying_work(hunt) / kBeforeRounds);
  const Nanoseconds below = hunt.best.empty() ? 0 : hunt.best.score().objective;
  if (std::exchange(hunt.tried, below) != below) try_with(hunt, certifying_work(hunt) / kInRounds);
}

}  // namespace

const Technique techniques::kTrial = {"trial of all schedules", try_all_schedules};
const Technique techniques::kQuickTrial = {kTrial.name, try_quickly};

}  // namespace ostinato
