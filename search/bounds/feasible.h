// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether any order fits the memory, with the proof where none does.

#include <vector>

#include "search/bounds/bounds.h"
#include "search/placement/instance.h"

namespace ostinato {

/// An order of the blocks of one micro-batch that stays within the memory of every device; with it, one
/// micro-batch after another is a schedule. Throws InfeasibleError where docs/bounds.md (I1, I2, I3) proves
/// that no schedule exists. Empty where neither was found within kFeasibleStates sets of blocks.
std::vector<int> fitting_order(const Instance& instance, const Bounds& bounds, int micro_batches);

/// Some block that takes no time takes or gives back memory. docs/formats.md lets what such blocks give back
/// at an instant count before what they take at it, whatever their order, so trying orders proves nothing
/// about them.
bool memory_in_no_time(const Instance& instance);

/// What one micro-batch takes on d and does not give back; below 0: what it gives back and never took.
/// O(blocks on d).
__int128 left_behind(const Instance& instance, int d);

inline constexpr std::size_t kFeasibleStates = 1 << 18;

}  // namespace ostinato
