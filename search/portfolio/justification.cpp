// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "search/portfolio/completions.h"
#include "search/portfolio/techniques.h"
#include "search/schedule/justify.h"

namespace ostinato {
namespace {

/// Steps that justification may run in all; and, for long schedules, this many passes, up to a limit.
constexpr std::int64_t kJustifiedSteps = 1'500'000;
constexpr std::int64_t kPasses = 4;
constexpr std::int64_t kMostSteps = 8'000'000;

/// Justifies the repetitions of the repetends, and the best schedule of all.
void try_justified(Hunt& hunt) {
  std::int64_t left = hunt.share(std::max(kJustifiedSteps, std::min(kPasses * hunt.all_steps(), kMostSteps)));
  const auto improve = [&](const std::vector<int>& sequence, const std::string& method) {
    for (const bool patient : {false, true}) {
      JustifyOptions options;
      options.patient = patient;
      options.stop = hunt.stop();
      options.passes = static_cast<int>(
          std::min<std::int64_t>(options.passes, left / static_cast<std::int64_t>(sequence.size() + 1)));
      if (options.passes == 0 || hunt.proved() || hunt.stopped()) return;
      const Justified better = justify(hunt.in, hunt.mirror, hunt.micro_batches, sequence, options);
      left -= better.steps;
      hunt.best.offer(better.sequence, method);
    }
  };
  for (; hunt.justified < hunt.repetends.size(); ++hunt.justified) {
    const Repetend& repetend = hunt.repetends[hunt.justified];
    const std::vector<int> rigid = repeated(hunt, repetend);
    hunt.best.offer(rigid, method_of(repetend));
    improve(rigid, method_of(repetend));
  }
  improve(hunt.best.sequence(), hunt.best.method());
}

}  // namespace

const Technique techniques::kJustification = {"justification", try_justified};

}  // namespace ostinato
