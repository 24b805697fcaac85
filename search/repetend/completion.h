// SPDX-License-Identifier: Apache-2.0
#pragma once
// Turns a repetend into a schedule of N micro-batches: repeats it, cuts it off at both ends, and reschedules
// the ends.
//
// Repeating the repetend from the first micro-batch to the last is already a schedule; no device holds more
// in it than in the steady state. Its ends are loose, though: all that starts before a cut is scheduled again
// by beam search so that the rest can come as early as possible (what is left is rigid, so each step has a
// due date: the start of what waits for it). The cool-down is the warm-up of the reversed problem. There is
// no barrier between the three: at the end every step of the joined orders starts as early as it can. Cost
// does not depend on N but for writing the steps down.

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "search/placement/instance.h"
#include "search/repetend/repetend.h"

namespace ostinato {

struct CompletionOptions {
  int micro_batches = 1;
  int width = 32;  ///< of the beam searches at both ends; 0: leave the ends as they are
  /// Narrower where this would not do (BeamResult::work).
  std::int64_t work = std::numeric_limits<std::int64_t>::max();
  std::function<bool()> stop = {};
};

struct Completed {
  std::vector<int>
      sequence;  ///< blocks by start (the i-th mention of a block is its micro-batch i); may be empty
  std::int64_t work = 0;  ///< as BeamResult::work
};

/// The sequence is empty where the micro-batches are too few for a warm-up and a cool-down that do not meet
/// (and width > 0).
Completed complete(const Instance& instance, const Instance& mirror, const Repetend& repetend,
                   const CompletionOptions& options);

}  // namespace ostinato
