// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "search/placement/placement.h"

namespace ostinato {

/// Optional `[model]` of a placement file: the model that the placement was made for, as its profile names
/// it.
struct ModelFacts {
  std::string sha256;                  ///< of the profile; empty: not known
  std::vector<std::string> layers;     ///< each layer's name, a space, and its digest; empty: not known
  int micro_batch_size = 0;            ///< samples of a micro-batch that was profiled; 0: not known
  std::vector<Bytes> step_memory;      ///< by device: what the end of a training step takes for a while above
                                       ///< static memory, when nothing is kept; empty: not known
  std::vector<Nanoseconds> step_time;  ///< by device: of the optimizer's step; empty: not known
};

}  // namespace ostinato
