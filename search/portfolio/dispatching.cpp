// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <vector>

#include "search/portfolio/techniques.h"
#include "search/schedule/beat.h"
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

/// Steps that patient dispatching may run in all, times blocks on a device.
constexpr std::int64_t kPatientWork = 6'000'000;
/// The time that devices are asked to keep, from the bound (0) to the best (4) and beyond.
constexpr int kSpans[] = {0, 1, 2, 4, 6};

/// Free devices wait if a step in between would delay other steps; and micro-batches begin when they can pass
/// each other without waiting.
void try_patience(Hunt& hunt) {
  if (hunt.options.objective == Objective::latency || hunt.few() || hunt.best.empty()) return;
  std::size_t most = 0;
  for (int d = 0; d < hunt.in.devices(); ++d) most = std::max(most, hunt.in.blocks_on(d).size());
  const std::int64_t work = hunt.steps() * static_cast<std::int64_t>(most);
  std::int64_t left = hunt.share(kPatientWork);
  const auto try_rule = [&](DispatchRule rule, int span, bool backwards) {
    if (hunt.proved() || hunt.stopped() || left < work) return;
    left -= work;
    rule.span = hunt.bound() + (hunt.best.score().objective - hunt.bound()) / 4 * span;
    std::vector<int> sequence =
        dispatch(backwards ? hunt.mirror : hunt.in, hunt.micro_batches, rule, hunt.stop());
    if (backwards) std::reverse(sequence.begin(), sequence.end());
    if (!sequence.empty()) hunt.best.offer(sequence, "patient dispatch");
  };
  for (const int span : kSpans) {
    for (const Priority priority : {Priority::deepest, Priority::due})
      for (const bool backwards : {false, true}) try_rule({.priority = priority}, span, backwards);
  }
  const Nanoseconds beat = hunt.in.any_limited() ? beat_of(hunt.in) : 0;
  if (beat == 0) return;
  for (const int beats : {1, 2}) {
    for (const Priority priority : {Priority::deepest, Priority::due, Priority::longest})
      try_rule({.priority = priority, .beat = beats * beat}, 4, false);
  }
}

}  // namespace

const Technique techniques::kPatience = {"patient dispatching", try_patience};

const Technique techniques::kDispatch = {"dispatching", try_dispatch};

}  // namespace ostinato
