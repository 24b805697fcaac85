// SPDX-License-Identifier: Apache-2.0
#pragma once
// The two halves of a training step: forwards up to the loss, then backwards.

#include <vector>

#include "search/placement/placement.h"

namespace ostinato {

/// Per block: true for a backward, whole or split, and for all that waits for one, directly or not. All false
/// for an inference. The placement must be acyclic. O(blocks + dependencies).
std::vector<bool> second_half(const Placement& placement);

}  // namespace ostinato
