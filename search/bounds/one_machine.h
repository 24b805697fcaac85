// SPDX-License-Identifier: Apache-2.0
#pragma once
// The least time in which one device does work that may be interrupted: the bound that all sets of blocks of
// a device give together (docs/bounds.md, M2 and S1), without looking at the sets.
//
//   least_end({{.head = 0, .time = 8, .tail = 5}, {.head = 3, .time = 4, .tail = 0}});   // 13
//
// It is the largest `min head + sum of times + min tail` over all non-empty sets of tasks, which the rule
// "run the ready task with the longest tail" reaches. Source: Carlier (1982), "The one-machine sequencing
// problem"; Jackson's preemptive schedule.

#include <vector>

#include "search/placement/placement.h"

namespace ostinato {

/// Work of one device, in nanoseconds: `head` passes before it can start, `tail` after it ends.
struct Task {
  Nanoseconds head;
  Nanoseconds time;
  Nanoseconds tail;
};

/// 0 without tasks. The sums must fit Nanoseconds. O(n log n).
Nanoseconds least_end(std::vector<Task> tasks);

}  // namespace ostinato
