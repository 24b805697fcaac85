// SPDX-License-Identifier: Apache-2.0
#include "search/checker/backlog.h"

#include <algorithm>

namespace ostinato::checker {

void Backlog::add(Nanoseconds head, Nanoseconds time) {
  least_ = std::min(least_, head);
  if (head == kUnknown) return;
  if (closed_ != kUnknown) closed_ += time;
  const auto later = [](Nanoseconds at, const Task& task) { return at < task.head; };
  open_.insert(std::upper_bound(open_.begin(), open_.end(), head, later), {head, time});
}

Nanoseconds Backlog::close_round() {
  Nanoseconds largest = closed_, work = 0;
  std::size_t closes = 0;  // tasks of which no later one has a smaller head
  for (std::size_t k = open_.size(); k-- > 0;) {
    work += open_[k].time;
    largest = std::max(largest, open_[k].head + work);
    if (closes == 0 && open_[k].head <= least_) closes = k + 1;
    if (closes > 0) closed_ = std::max(closed_, open_[k].head + work);
  }
  open_.erase(open_.begin(), open_.begin() + static_cast<std::ptrdiff_t>(closes));
  least_ = std::numeric_limits<Nanoseconds>::max();
  return largest;
}

}  // namespace ostinato::checker
