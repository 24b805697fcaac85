// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "search/bounds/feasible.h"
#include "search/portfolio/techniques.h"

namespace ostinato {
namespace {

void try_sequential(Hunt& hunt) {
  const std::vector<int> one = fitting_order(hunt.in, hunt.bounds, hunt.micro_batches);
  std::vector<int> all;
  for (int i = 0; i < hunt.micro_batches; ++i) all.insert(all.end(), one.begin(), one.end());
  if (!one.empty()) hunt.best.offer(all, "one micro-batch after another");
  // What takes and gives back in no time may fit though no order of single steps does.
  if (one.empty() && memory_in_no_time(hunt.in)) {
    for (int i = 0; i < hunt.micro_batches; ++i)
      all.insert(all.end(), hunt.in.topological().begin(), hunt.in.topological().end());
    hunt.best.offer(all, "one micro-batch after another");
  }
}

}  // namespace

const Technique techniques::kSequential = {"one micro-batch after another", try_sequential};

}  // namespace ostinato
