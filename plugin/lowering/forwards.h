// SPDX-License-Identifier: Apache-2.0
#pragma once
// The forward part of a program: what evaluation runs of a training plan, and of fewer micro-batches than a
// plan has.
//
//   Program part = forwards(program, 3, {0, 2, 4});   // forwards of micro-batches 0, 1, 2 and three stages
//
// What is left of a list stays in its order, so all lists are projections of one global order as before
// (lower.h), and deadlock.h checks it again without trusting that.

#include <vector>

#include "plugin/lowering/program.h"

namespace ostinato {

/// The first `micro_batches` of the stages `stages` (ascending indices into program.stages), which are
/// renumbered in that order; transfers go with the computes that they serve. `makespan` is the planned end of
/// what is left, bounds and peaks are none. Throws std::invalid_argument for numbers that the program does
/// not have, and where a stage is left without one that feeds it. O(instructions).
Program forwards(const Program& program, int micro_batches, const std::vector<int>& stages);

}  // namespace ostinato
