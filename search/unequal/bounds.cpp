// SPDX-License-Identifier: Apache-2.0
#include "search/unequal/bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "search/bounds/one_machine.h"
#include "search/placement/quantity.h"
#include "search/unequal/held.h"

namespace ostinato::unequal {
namespace {

__extension__ using Wide = __int128;

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
  }
  return least;
}

std::string what_cannot_fit(const Jobs& jobs, const Placement& placement) {
  for (int d = 0; d < jobs.devices(); ++d) {  // also of one that runs nothing
    if (jobs.room(d) < 0)
      return fmt::format("device {} ({}): static memory is larger than its memory", d,
                         placement.devices[d].name);
  }
  for (int d = 0; d < jobs.devices(); ++d) {
    const std::vector<int> steps = steps_on(jobs, d);
    const auto alone = std::ranges::find_if(steps, [&](int s) {
      return jobs.time(s) > 0 && std::max<Bytes>(jobs.memory(s), 0) + jobs.workspace(s) > jobs.room(d);
    });
    // What is given back before anything took it would make room for the step.
    if (alone != steps.end() && match(jobs, d).all_given_taken)
      return fmt::format("block '{}' of micro-batch {} alone needs more memory than its device has",
                         placement.blocks[jobs.block(*alone)].name, jobs.micro_batch(*alone));
    __int128 kept = 0;
    for (const int s : steps) kept += jobs.memory(s);
    if (jobs.limited(d) && kept > jobs.room(d))
      return fmt::format(
          "device {} ({}): the micro-batches keep {} to the end, but static memory leaves only {}", d,
          placement.devices[d].name, format_memory(static_cast<Bytes>(kept)), format_memory(jobs.room(d)));
  }
  return "";
}

}  // namespace ostinato::unequal
