// SPDX-License-Identifier: Apache-2.0
#include "search/portfolio/completions.h"

#include <algorithm>
#include <utility>

#include "search/files/counted.h"
#include "search/repetend/completion.h"

namespace ostinato {
namespace {

/// Steps that the justification of one schedule of a beam may run, in one way.
constexpr std::int64_t kStepsOfOne = 200'000;

}  // namespace

std::string method_of(const Repetend& repetend) {
  return "repetend of " + counted(repetend.unroll, "micro-batch");
}

std::vector<int> repeated(const Hunt& hunt, const Repetend& repetend) {
  return complete(hunt.in, hunt.mirror, repetend, {.micro_batches = hunt.micro_batches, .width = 0}).sequence;
}

Found completed(Hunt& hunt, const Repetend& repetend, int width, std::int64_t work) {
  Found found;
  CompletionOptions options;
  options.micro_batches = hunt.micro_batches;
  options.work = work;
  options.stop = hunt.stop();
  for (const int w : {width / 2, width}) {
    options.width = w;
    Completed done = complete(hunt.in, hunt.mirror, repetend, options);
    if (done.work == 0) continue;  // without a beam it is what it was
    found.work += done.work;
    if (!done.sequence.empty()) found.sequences.push_back(std::move(done.sequence));
  }
  add_justified(hunt, found);
  found.sequences.push_back(repeated(hunt, repetend));
  found.truncated = true;
  return found;
}

std::optional<Justified> justified(Hunt& hunt, const std::vector<int>& sequence, bool patient,
                                   std::int64_t most_passes) {
  JustifyOptions options{.patient = patient, .stop = hunt.stop()};
  options.passes = static_cast<int>(std::min<std::int64_t>(options.passes, most_passes));
  if (options.passes <= 0) return std::nullopt;
  return justify(hunt.in, hunt.mirror, hunt.micro_batches, sequence, options);
}

void add_justified(Hunt& hunt, Found& found) {
  for (std::size_t i = found.sequences.size(); i-- > 0;) {
    for (const bool patient : {false, true}) {
      auto made = justified(hunt, found.sequences[i], patient, kStepsOfOne / hunt.steps());
      if (!made) continue;
      found.work += made->steps;
      found.sequences.push_back(std::move(made->sequence));
    }
  }
}

}  // namespace ostinato
