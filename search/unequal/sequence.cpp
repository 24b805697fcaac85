// SPDX-License-Identifier: Apache-2.0
#include "search/unequal/sequence.h"

#include <algorithm>

namespace ostinato::unequal {

Sequence::Sequence(const Jobs& jobs) : jobs_(jobs) {
  for (int b = 0; b < jobs.blocks(); ++b) width_ = std::max(width_, jobs.devices_of(b).size());
  const std::size_t steps = jobs.steps();
  for (Times* times : {&now_, &next_}) {
    times->end.assign(steps, 0);
    times->before.assign(steps * width_, -1);
  }
  place_.assign(steps, 0);
}

/// Into next_. kNever: not a schedule, or one that ends later than `limit`.
Nanoseconds Sequence::measure(const std::vector<int>& order, Nanoseconds limit) {
  free_.assign(jobs_.devices(), 0);
  used_.assign(free_.size(), 0);
  last_.assign(free_.size(), -1);
  Nanoseconds makespan = 0;
  std::int64_t looked = 0;
  bool holds = true;
  for (const int s : order) {
    ++looked;
    Nanoseconds start = 0;
    for (const Jobs::Input& in : jobs_.inputs(s)) start = std::max(start, next_.end[in.step] + in.transfer);
    std::size_t k = static_cast<std::size_t>(s) * width_;
    const Bytes memory = jobs_.memory(s);
    for (const int device : jobs_.devices_of(s)) {
      const std::size_t d = device;
      start = std::max(start, free_[d]);
      next_.before[k++] = last_[d];
      last_[d] = s;
      if (used_[d] + std::max<Bytes>(memory, 0) + jobs_.workspace(s) > jobs_.room(device)) holds = false;
      used_[d] += memory;
    }
    const Nanoseconds end = start + jobs_.time(s);
    next_.end[s] = end;
    for (const int device : jobs_.devices_of(s)) free_[device] = end;
    if (!holds || end + jobs_.tail(s) > limit) {
      work_ += looked;
      return kNever;
    }
    makespan = std::max(makespan, end);
  }
  work_ += looked;
  return makespan;
}

/// The trial becomes the schedule, if it is one.
bool Sequence::take(Nanoseconds limit) {
  const Nanoseconds makespan = measure(trial_, limit);
  if (makespan == kNever) return false;
  makespan_ = makespan;
  std::swap(now_, next_);
  std::swap(order_, trial_);
  sort_by_start();
  return true;
}

/// Nearly sorted already; steps of one start keep their order, so that inputs of no time stay in front.
void Sequence::sort_by_start() {
  for (std::size_t k = 1; k < order_.size(); ++k) {
    const int s = order_[k];
    const Nanoseconds at = start(s);
    std::size_t to = k;
    for (; to > 0 && start(order_[to - 1]) > at; --to) order_[to] = order_[to - 1];
    order_[to] = s;
  }
  for (std::size_t k = 0; k < order_.size(); ++k) place_[order_[k]] = static_cast<int>(k);
}

bool Sequence::load(const std::vector<int>& order, Nanoseconds limit) {
  std::vector<char> seen(order.size(), 0);
  for (const int s : order) {
    for (const Jobs::Input& in : jobs_.inputs(s))
      if (seen[in.step] == 0) return false;
    seen[s] = 1;
  }
  trial_ = order;
  return take(limit);
}

bool Sequence::shift(const Shift& move, Nanoseconds limit) {
  const int from = place_[move.first], to = place_[move.last];
  const int mover = move.right ? move.first : move.last;
  const int i = jobs_.micro_batch(mover), block = jobs_.block(mover);
  with_.clear();
  rest_.clear();
  for (int k = from; k <= to; ++k) {
    const int s = order_[k];
    const bool goes = jobs_.micro_batch(s) == i && (move.right ? jobs_.reaches(block, jobs_.block(s))
                                                               : jobs_.reaches(jobs_.block(s), block));
    (goes ? with_ : rest_).push_back(s);
  }
  work_ += to - from;
  trial_ = order_;
  auto out = trial_.begin() + from;
  out = std::copy((move.right ? rest_ : with_).begin(), (move.right ? rest_ : with_).end(), out);
  std::copy((move.right ? with_ : rest_).begin(), (move.right ? with_ : rest_).end(), out);
  return take(limit);
}

bool Sequence::exchange(int i, int j, Nanoseconds limit) {
  trial_ = order_;
  for (int b = 0; b < jobs_.blocks(); ++b) {
    const int x = i * jobs_.blocks() + b, y = j * jobs_.blocks() + b;
    trial_[place_[x]] = y;
    trial_[place_[y]] = x;
  }
  return take(limit);
}

bool Sequence::slide(int i, int places, Nanoseconds limit) {
  with_.clear();
  rest_.clear();
  for (const int s : order_) (jobs_.micro_batch(s) == i ? with_ : rest_).push_back(s);
  work_ += static_cast<std::int64_t>(order_.size());
  trial_.clear();
  std::size_t next = 0;
  for (const int s : with_) {
    const int at = place_[s] - places;
    while (next < rest_.size() && static_cast<int>(trial_.size()) < at) trial_.push_back(rest_[next++]);
    trial_.push_back(s);
  }
  trial_.insert(trial_.end(), rest_.begin() + static_cast<std::ptrdiff_t>(next), rest_.end());
  return take(limit);
}

const std::vector<Sequence::Pair>& Sequence::critical(Random& random) {
  pairs_.clear();
  int s = order_.front();
  int ties = 0;
  for (const int x : order_)
    if (end(x) == makespan_ && random.below(++ties) == 0) s = x;
  bool joined = false;
  int on = -1;
  while (s >= 0) {
    int next = -1, device = -1, found = 0;
    std::size_t k = static_cast<std::size_t>(s) * width_;
    for (const int d : jobs_.devices_of(s)) {
      const int before = now_.before[k++];
      if (before >= 0 && end(before) == start(s) && random.below(++found) == 0) next = before, device = d;
    }
    for (const Jobs::Input& in : jobs_.inputs(s))
      if (end(in.step) + in.transfer == start(s) && random.below(++found) == 0) next = in.step, device = -1;
    const bool own = next >= 0 && jobs_.micro_batch(next) == jobs_.micro_batch(s) &&
                     jobs_.reaches(jobs_.block(next), jobs_.block(s));
    if (device >= 0 && !own) {
      pairs_.push_back({next, s, joined && on == device});
      joined = true;
      on = device;
    } else {
      joined = false;
    }
    s = next;
  }
  work_ += static_cast<std::int64_t>(pairs_.size());
  return pairs_;
}

}  // namespace ostinato::unequal
