// SPDX-License-Identifier: Apache-2.0
#pragma once
// How long a device is surely busy with tasks that join round by round.
//
//   Backlog backlog;
//   backlog.add(0, 3); backlog.add(5, 2);
//   backlog.close_round();        // 7: the second starts at 5 at the earliest
//   backlog.add(5, 4);
//   backlog.close_round();        // 11

#include <cstdint>
#include <limits>
#include <vector>

#include "search/placement/placement.h"

namespace ostinato::checker {

/// The start of a task or a set when nothing is known of it.
inline constexpr Nanoseconds kUnknown = -1;

/// The largest (least head + sum of times) over all sets of the tasks added so far: over every h, h plus the
/// work of the tasks with heads of at least h. No head may be below the least of the round before: each h
/// below that then gains all that is added from then on, and one figure serves all of them. A task with
/// unknown head is in no set; the tasks of later rounds may have any head.
class Backlog {
 public:
  void add(Nanoseconds head, Nanoseconds time);

  /// Of all that was added; kUnknown of nothing. O(tasks with a head above the least of this round).
  Nanoseconds close_round();

  std::int64_t open() const { return static_cast<std::int64_t>(open_.size()); }

 private:
  struct Task {
    Nanoseconds head;
    Nanoseconds time;
  };

  std::vector<Task> open_;  ///< by head
  Nanoseconds closed_ = kUnknown;
  Nanoseconds least_ = std::numeric_limits<Nanoseconds>::max();  ///< head of this round
};

}  // namespace ostinato::checker
