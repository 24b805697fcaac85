// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is cut out of schedules where blocks hold several devices (docs/bounds.md, M6).

#include <vector>

#include "search/placement/instance.h"

namespace ostinato {

/// For every device and every width above 1, the blocks there that are at least as wide: the first few
/// different sets. O(blocks log blocks) a device.
std::vector<std::vector<int>> sets_to_cut(const Instance& instance);

/// Whether none of these blocks can run while `block` does.
bool shares_with_all(const Instance& instance, int block, const std::vector<int>& others);

}  // namespace ostinato
