// SPDX-License-Identifier: Apache-2.0
#include "search/portfolio/completions.h"

#include <utility>

#include "search/files/counted.h"
#include "search/repetend/completion.h"

namespace ostinato {

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
  options.stop = hunt.stop();
  for (const int w : {0, width}) {
    options.width = w;
    options.work = work;
    Completed done = complete(hunt.in, hunt.mirror, repetend, options);
    found.work += done.work;
    found.truncated = true;
    if (!done.sequence.empty()) found.sequences.push_back(std::move(done.sequence));
  }
  return found;
}

}  // namespace ostinato
