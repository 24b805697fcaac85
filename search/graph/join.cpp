// SPDX-License-Identifier: Apache-2.0
#include "search/graph/join.h"

#include <algorithm>

namespace ostinato::graph {

/// The best set to run here is, for some k, the k inputs whose transfers end last.
Ticks GraphJoin::earliest() {
  if (inputs_.size() == 1) return std::min(inputs_[0].remote, inputs_[0].release + inputs_[0].duration);
  std::sort(inputs_.begin(), inputs_.end(),
            [](const Input& a, const Input& b) { return a.remote > b.remote; });
  Ticks best = kGraphNever;
  for (std::size_t here = 0; here <= inputs_.size(); ++here) {
    const Ticks away = here < inputs_.size() ? inputs_[here].remote : 0;
    const Ticks together = in_sequence(here);
    best = std::min(best, std::max(away, together));
    if (together >= away || together >= kGraphNever) break;  // more here only takes longer
  }
  return best;
}

Ticks GraphJoin::in_sequence(std::size_t count) {
  if (count == 0) return 0;
  if (count == 1) return inputs_[0].release + inputs_[0].duration;
  sequence_.assign(inputs_.begin(), inputs_.begin() + static_cast<std::ptrdiff_t>(count));
  std::sort(sequence_.begin(), sequence_.end(),
            [](const Input& a, const Input& b) { return a.release < b.release; });
  Ticks end = 0;
  for (const Input& n : sequence_) end = std::max(end, n.release) + n.duration;
  return end;
}

}  // namespace ostinato::graph
