// SPDX-License-Identifier: Apache-2.0
#include "search/unequal/bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "search/bounds/one_machine.h"
#include "search/unequal/held.h"

namespace ostinato::unequal {
namespace {

__extension__ using Wide = __int128;

/// Most different times on each side that U4 tries.
constexpr std::size_t kMostTimes = 16;

Nanoseconds longest_path(const Jobs& jobs) {
  Nanoseconds longest = 0;
  for (int s = 0; s < jobs.steps(); ++s)
    longest = std::max(longest, jobs.head(s) + jobs.time(s) + jobs.tail(s));
  return longest;
}

std::vector<int> steps_on(const Jobs& jobs, int d) {
  std::vector<int> steps;
  for (int i = 0; i < jobs.micro_batches(); ++i)
    for (const int b : jobs.blocks_on(d)) steps.push_back(i * jobs.blocks() + b);
  return steps;
}

Nanoseconds work_on(const Jobs& jobs, const std::vector<int>& steps) {
  std::vector<Task> tasks;
  for (const int s : steps) tasks.push_back({jobs.head(s), jobs.time(s), jobs.tail(s)});
  return least_end(std::move(tasks));
}

/// U3.
Nanoseconds memory_over_time(const Jobs& jobs, const std::vector<int>& steps, const Matched& matched, int d) {
  Wide area = 0;
  Nanoseconds head = std::numeric_limits<Nanoseconds>::max(), tail = head;
  for (const Held& held : matched.held) {
    area += static_cast<Wide>(held.bytes) * held.distance;
    head = std::min(head, jobs.head(held.taker));
    tail = std::min(tail, jobs.tail(held.giver));
  }
  for (const int s : steps) {
    if (jobs.workspace(s) == 0) continue;
    area += static_cast<Wide>(jobs.workspace(s)) * jobs.time(s);
    head = std::min(head, jobs.head(s));
    tail = std::min(tail, jobs.tail(s));
  }
  if (area == 0 || jobs.room(d) <= 0) return 0;
  return head + static_cast<Nanoseconds>((area + jobs.room(d) - 1) / jobs.room(d)) + tail;
}

/// One end of the schedule on one device, for U4: from the front, or with time running backwards from the
/// end.
class Side {
 public:
  Side(const Jobs& jobs, const std::vector<int>& steps, const Matched& matched, Bytes room, bool front)
      : jobs_(jobs), steps_(steps), matched_(matched), room_(room), front_(front) {
    locked_.resize(jobs.steps());
  }

  /// The most idle time, and the work before it that goes with it.
  struct Idle {
    Nanoseconds time = 0;
    Wide work = 0;
  };
  std::vector<Idle> all() {
    std::vector<Nanoseconds> times = {0};
    for (const Held& held : matched_.held) {
      const int s = front_ ? held.giver : held.taker;
      times.push_back(before(s));
      times.push_back(before(s) + jobs_.time(s));
    }
    std::sort(times.begin(), times.end());
    times.erase(std::unique(times.begin(), times.end()), times.end());
    if (times.size() > kMostTimes) times.resize(kMostTimes);
    std::vector<Idle> idles;
    for (const Nanoseconds at : times) idles.push_back({at, most_work(at)});
    return idles;
  }

 private:
  Nanoseconds before(int s) const { return front_ ? jobs_.head(s) : jobs_.tail(s); }

  /// Started before `at`: steps that hold no memory at it, and of the others what the room holds, the last
  /// one in part.
  Wide most_work(Nanoseconds at) {
    for (const int s : steps_) locked_[s] = 0;
    for (const Held& held : matched_.held) {
      const int end = front_ ? held.giver : held.taker, begin = front_ ? held.taker : held.giver;
      if (before(end) + jobs_.time(end) >= at) locked_[begin] += held.bytes;
    }
    Wide work = 0, room = room_;
    holding_.clear();
    for (const int s : steps_) {
      if (before(s) >= at) continue;
      if (locked_[s] == 0)
        work += jobs_.time(s);
      else
        holding_.push_back(s);
    }
    std::sort(holding_.begin(), holding_.end(), [&](int x, int y) {
      return static_cast<Wide>(jobs_.time(x)) * locked_[y] > static_cast<Wide>(jobs_.time(y)) * locked_[x];
    });
    for (const int s : holding_) {
      const Bytes bytes = locked_[s];
      if (bytes > room) return work + (static_cast<Wide>(jobs_.time(s)) * room + bytes - 1) / bytes;
      work += jobs_.time(s);
      room -= bytes;
    }
    return work;
  }

  const Jobs& jobs_;
  const std::vector<int>& steps_;
  const Matched& matched_;
  Bytes room_;
  bool front_;
  std::vector<Bytes> locked_;
  std::vector<int> holding_;
};

/// U4.
Nanoseconds idle_at_both_ends(const Jobs& jobs, const std::vector<int>& steps, const Matched& matched,
                              int d) {
  if (!matched.all_taken_given) return 0;
  const auto front = Side(jobs, steps, matched, jobs.room(d), true).all();
  const auto back = Side(jobs, steps, matched, jobs.room(d), false).all();
  Wide best = 0;
  for (const auto& f : front)
    for (const auto& b : back)
      if (f.work + b.work < jobs.load(d))
        best = std::max(best, jobs.load(d) + (f.time - f.work) + (b.time - b.work));
  return static_cast<Nanoseconds>(best);
}

}  // namespace

Nanoseconds least_makespan(const Jobs& jobs) {
  Nanoseconds least = longest_path(jobs);
  for (int d = 0; d < jobs.devices(); ++d) {
    const std::vector<int> steps = steps_on(jobs, d);
    least = std::max(least, work_on(jobs, steps));
    if (!jobs.limited(d) || jobs.room(d) < 0) continue;
    const Matched matched = match(jobs, d);
    if (!matched.all_given_taken) continue;
    least = std::max(least, memory_over_time(jobs, steps, matched, d));
    least = std::max(least, idle_at_both_ends(jobs, steps, matched, d));
  }
  return least;
}

std::string what_cannot_fit(const Jobs& jobs, const Placement& placement) {
  for (int d = 0; d < jobs.devices(); ++d) {  // also of one that runs nothing
    if (jobs.room(d) < 0)
      return fmt::format("device {} ({}): static memory is larger than its memory", d,
                         placement.devices[d].name);
  }
  for (int s = 0; s < jobs.steps(); ++s) {
    for (const int d : jobs.devices_of(s)) {
      if (jobs.time(s) > 0 && std::max<Bytes>(jobs.memory(s), 0) + jobs.workspace(s) > jobs.room(d))
        return fmt::format("block '{}' of micro-batch {} alone needs more memory than its device has",
                           placement.blocks[jobs.block(s)].name, jobs.micro_batch(s));
    }
  }
  return "";
}

}  // namespace ostinato::unequal
