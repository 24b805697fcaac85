// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <vector>

#include "search/portfolio/techniques.h"
#include "search/schedule/dispatch.h"

namespace ostinato {
namespace {

/// Steps that dispatching may run in all.
constexpr std::int64_t kDispatchedSteps = 1'000'000;
/// The same where the bound is met already, for less memory.
constexpr std::int64_t kSparingDispatch = 100'000;

/// One rule, whatever the clock says, where nothing better is known than one micro-batch after another.
void try_dispatch(Hunt& hunt) {
  const std::int64_t most = hunt.share(kDispatchedSteps);
  std::int64_t steps = 0;
  for (const DispatchRule& rule : dispatch_rules(hunt.in)) {
    for (const bool backwards : {false, true}) {
      const bool first = steps == 0;  // one rule runs at any size, where the bound is not met
      steps += hunt.steps();
      if (hunt.proved() ? !rule.phases || steps > kSparingDispatch : steps > most && !first) return;
      const bool must = hunt.only_in_turn() && (first || steps <= kSparingDispatch);
      if (hunt.stopped() && !must) return;
      std::vector<int> sequence = dispatch(backwards ? hunt.mirror : hunt.in, hunt.micro_batches, rule,
                                           must ? std::function<bool()>() : hunt.stop());
      if (backwards) std::reverse(sequence.begin(), sequence.end());
      if (!sequence.empty()) hunt.best.offer(sequence, "dispatch");
    }
  }
}

}  // namespace

const Technique techniques::kDispatch = {"dispatching", try_dispatch};

}  // namespace ostinato
