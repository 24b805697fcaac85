// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/windows.h"
#include "search/bounds/statements.h"
#include "search/portfolio/techniques.h"

namespace ostinato {
namespace {

/// Work (Windows::work) for S4, a few hundredths of a second.
constexpr std::int64_t kSpanWork = 8'000'000;

/// Where the best does not meet the bound: M4 to M6, S4 to S6.
void look_at_windows(Hunt& hunt) {
  const std::int64_t steps = hunt.all_steps();
  if (hunt.windows_known || hunt.few() || hunt.best.empty() || hunt.best.score().objective <= hunt.bound() ||
      steps > Windows::kMostSteps)
    return;
  hunt.windows_known = true;
  hunt.claim(bound_by_windows(hunt.in, hunt.mirror, hunt.options.objective, hunt.options.micro_batches,
                              hunt.best.score().objective, kSpanWork, hunt.stop()));
}

}  // namespace

const Technique techniques::kWindows = {"windows", look_at_windows};

}  // namespace ostinato
