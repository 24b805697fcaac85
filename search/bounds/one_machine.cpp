// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/one_machine.h"

#include <algorithm>

namespace ostinato {

Nanoseconds least_end(std::vector<Task> tasks) {
  std::sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.head < b.head; });
  const auto shorter_tail = [](const Task& a, const Task& b) { return a.tail < b.tail; };
  std::vector<Task> ready;  // a heap, the longest tail on top; `time` is what is left
  Nanoseconds now = 0;
  Nanoseconds end = 0;
  for (std::size_t next = 0; next < tasks.size() || !ready.empty();) {
    if (ready.empty()) now = std::max(now, tasks[next].head);
    for (; next < tasks.size() && tasks[next].head <= now; ++next) {
      ready.push_back(tasks[next]);
      std::push_heap(ready.begin(), ready.end(), shorter_tail);
    }
    Task& longest = ready.front();
    const Nanoseconds until =
        next < tasks.size() ? std::min(tasks[next].head, now + longest.time) : now + longest.time;
    longest.time -= until - now;
    now = until;
    if (longest.time > 0) continue;
    end = std::max(end, now + longest.tail);
    std::pop_heap(ready.begin(), ready.end(), shorter_tail);
    ready.pop_back();
  }
  return end;
}

}  // namespace ostinato
