// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "search/portfolio/completions.h"
#include "search/portfolio/techniques.h"
#include "search/repetend/completion.h"
#include "search/schedule/justify.h"

namespace ostinato {
namespace {

/// Where the objective meets its bound already (GPipe's often does, at the price of all activations), a
/// repetend may reach the same in less memory: in what it holds itself, or in twice that at both ends.
void spare_memory(Hunt& hunt) {
  for (const Repetend& repetend : hunt.repetends) {
    for (auto& sequence : completed(hunt, repetend, kWidths[0], hunt.work_left).sequences) {
      hunt.best.offer(sequence, method_of(repetend));
    }
    const std::vector<Bytes> held = held_by(hunt.in, repetend);
    const Bytes most = *std::max_element(held.begin(), held.end());
    const std::vector<int> rigid = repeated(hunt, repetend);
    for (const Bytes room : {most, most > kUnlimited / 2 ? kUnlimited : 2 * most}) {
      if (hunt.stopped()) return;
      JustifyOptions options;
      for (int d = 0; d < hunt.in.devices(); ++d) options.room.push_back(std::min(room, hunt.in.room(d)));
      options.stop = hunt.stop();
      hunt.best.offer(justify(hunt.in, hunt.mirror, hunt.micro_batches, rigid, options).sequence,
                      method_of(repetend));
    }
  }
}

}  // namespace

const Technique techniques::kSparing = {"less memory", spare_memory};

}  // namespace ostinato
