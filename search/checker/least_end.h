// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one device needs that may interrupt its work: the bound of all sets of its work at once
// (docs/bounds.md, M2, M4, S1, S4).
//
//   least_end<Wide>({{0, 8, 5}, {3, 4, 0}})   // 13

#include <algorithm>
#include <queue>
#include <utility>
#include <vector>

namespace ostinato::checker {

/// A piece of work on one device: it may start at `head`, takes `time`, and `tail` follows it.
template <typename Time>
struct Task {
  Time head;
  Time time;
  Time tail;
};

/// The least time in which one device does all tasks and what follows them, if it may interrupt them: the
/// largest min head + sum of times + min tail over all sets of tasks. O(n log n). Source: Carlier (1982).
template <typename Time>
Time least_end(std::vector<Task<Time>> tasks) {
  std::sort(tasks.begin(), tasks.end(),
            [](const Task<Time>& a, const Task<Time>& b) { return a.head < b.head; });
  std::priority_queue<std::pair<Time, Time>> ready;  // tail, time that is left
  Time now = 0, end = 0;
  for (std::size_t next = 0; next < tasks.size() || !ready.empty();) {
    if (ready.empty()) now = std::max(now, tasks[next].head);
    for (; next < tasks.size() && tasks[next].head <= now; ++next) {
      ready.emplace(tasks[next].tail, tasks[next].time);
    }
    auto [tail, left] = ready.top();
    ready.pop();
    const Time run = next < tasks.size() ? std::min(left, tasks[next].head - now) : left;
    now += run;
    if (run < left) {
      ready.emplace(tail, left - run);
    } else {
      end = std::max(end, now + tail);
    }
  }
  return end;
}

}  // namespace ostinato::checker
