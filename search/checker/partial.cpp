// SPDX-License-Identifier: Apache-2.0
#include "search/checker/partial.h"

#include <algorithm>
#include <limits>

namespace ostinato::checker {
namespace {

constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max() / 4;

}  // namespace

bool Partial::dominates(const Partial& other) const {
  if (sum > other.sum || cursor > other.cursor || (cursor == other.cursor && last > other.last)) return false;
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (times[i] > other.times[i]) return false;
  }
  return true;
}

Moves::Moves(const Graph& graph, const Windows& windows, int n, Nanoseconds deadline, bool backwards)
    : graph_(graph), windows_(windows), n_(n), deadline_(deadline), backwards_(backwards) {
  const std::size_t blocks = graph.blocks();
  inputs_.resize(blocks);
  followers_.resize(blocks);
  longest_transfer_.assign(blocks, 0);
  graph.walk(backwards, [&](int b, const std::vector<Graph::Edge>& edges) {
    order_.push_back(b);
    for (const Graph::Edge& edge : edges) {
      const auto transfer = static_cast<Nanoseconds>(edge.transfer);
      inputs_[b].push_back({edge.block, transfer});
      followers_[edge.block].push_back(b);
      longest_transfer_[edge.block] = std::max(longest_transfer_[edge.block], transfer);
    }
  });
  // At one start, steps that take no time come first: what starts then may wait for them.
  std::vector<int> by_place = order_;
  std::stable_partition(by_place.begin(), by_place.end(), [&](int b) { return graph.block(b).time == 0; });
  place_.resize(blocks);
  for (std::size_t i = 0; i < blocks; ++i) place_[by_place[i]] = static_cast<int>(i);
  for (int b = 0; b < graph.blocks(); ++b) {
    time_.push_back(graph.block(b).time);
    memory_.push_back(backwards ? -graph.block(b).memory : graph.block(b).memory);
    needed_.push_back(std::max<Bytes>(0, memory_.back()) + graph.workspace(b));
    due_.push_back(n);
    while (due_[b] > 0 && windows_after(b, due_[b] - 1) == kUnknown) --due_[b];
  }
  for (const Device& d : graph.placement().devices) {
    room_.push_back(d.memory == kUnlimited ? kUnlimited : d.memory - d.static_memory);
  }
  start_.resize(blocks);
  floor_.resize(blocks);
  ready_.resize(blocks);
  end_.resize(blocks * n_);
}

Partial Moves::root() const {
  Partial state;
  state.count.assign(time_.size(), 0);
  state.times.assign(room_.size(), 0);
  return state;
}

/// The first micro-batch whose end some follower still waits for.
int Moves::oldest_end(int b) const {
  int oldest = count_[b];
  for (const int c : followers_[b]) oldest = std::min(oldest, count_[c]);
  return oldest;
}

void Moves::open(const Partial& state) {
  count_ = state.count;
  cursor_ = state.cursor;
  last_ = state.last;
  sum_ = state.sum;
  auto time = state.times.begin();
  free_.assign(time, time + static_cast<std::ptrdiff_t>(room_.size()));
  time += static_cast<std::ptrdiff_t>(room_.size());
  used_.assign(room_.size(), 0);
  for (int b = 0; b < graph_.blocks(); ++b) {
    for (int i = oldest_end(b); i < count_[b]; ++i) end(b, i) = *time++;
    for (const int d : graph_.block(b).devices) used_[d] += count_[b] * memory_[b];
  }
  find_starts();
  find_choices();
}

void Moves::store(Partial& result) const {
  result.count = count_;
  result.cursor = cursor_;
  result.last = last_;
  result.sum = sum_;
  result.times.clear();
  // What lies before the cursor is all the same: nothing starts before it.
  for (const Nanoseconds at : free_) result.times.push_back(std::max(at, cursor_ - 1));
  for (int b = 0; b < graph_.blocks(); ++b) {
    const Nanoseconds past = cursor_ - 1 - longest_transfer_[b];
    for (int i = oldest_end(b); i < count_[b]; ++i) result.times.push_back(std::max(end(b, i), past));
  }
}

bool Moves::fits(int b) const {
  if (needed_[b] == 0) return true;
  const auto& devices = graph_.block(b).devices;
  return std::all_of(devices.begin(), devices.end(),
                     [&](int d) { return room_[d] == kUnlimited || used_[d] + needed_[b] <= room_[d]; });
}

/// It takes nothing, so that no other step would mind if it ran sooner.
bool Moves::harmless(int b) const {
  if (needed_[b] == 0) return true;
  const auto& devices = graph_.block(b).devices;
  return std::all_of(devices.begin(), devices.end(), [&](int d) { return room_[d] == kUnlimited; });
}

/// The turn of b at its start has gone by: it starts only after another step on one of its devices.
bool Moves::passed(int b) const { return start_[b] < cursor_ || (start_[b] == cursor_ && place_[b] < last_); }

/// start_ and ready_ of every block, no sooner than floor_.
void Moves::find_starts() {
  std::fill(floor_.begin(), floor_.end(), 0);
  propagate();
}

void Moves::propagate() {
  for (const int b : order_) {
    const int i = count_[b];
    if (i == static_cast<int>(n_)) {
      start_[b] = kNever;
      ready_[b] = 0;
      continue;
    }
    Nanoseconds at = floor_[b];
    for (const int d : graph_.block(b).devices) at = std::max(at, free_[d]);
    bool ready = fits(b);
    for (const Input& input : inputs_[b]) {
      const bool begun = count_[input.block] > i;
      ready = ready && begun;
      const Nanoseconds ended = begun ? end(input.block, i) : start_[input.block] + time_[input.block];
      at = std::max(at, ended + input.transfer);
    }
    ready_[b] = ready ? 1 : 0;
    start_[b] = ready ? at : std::max(at, cursor_);
  }
}

void Moves::find_choices() {
  choices_.clear();
  // A step that leaves a gap in which a harmless one would fit is not part of the least schedule.
  Nanoseconds horizon = kNever;
  for (const int b : order_) {
    if (ready_[b] != 0 && harmless(b)) {
      horizon = std::min(horizon, start_[b] + std::max<Nanoseconds>(1, time_[b]));
    }
  }
  for (const int b : order_) {
    if (ready_[b] != 0 && !passed(b) && start_[b] < horizon) choices_.push_back({b, start_[b]});
  }
}

/// Raises floor_ of what cannot start at its start_; false if nothing can ever let it start.
bool Moves::raise_floors() {
  bool raised = false;
  for (const int b : order_) {
    if (start_[b] == kNever) continue;
    const int i = count_[b];
    floor_[b] = windows_earliest(b, i);
    if (ready_[b] != 0 ? passed(b) && !wait_for_device(b) : !fits(b) && !wait_for_memory(b)) return false;
    raised = raised || floor_[b] > start_[b];
  }
  if (raised) propagate();
  return true;
}

bool Moves::wait_for_device(int b) {
  Nanoseconds soonest = kNever;
  for (const int d : graph_.block(b).devices) {
    for (const int c : graph_.on_device(d)) {
      if (c != b && start_[c] != kNever) soonest = std::min(soonest, std::max(start_[c], cursor_) + time_[c]);
    }
  }
  floor_[b] = std::max(floor_[b], soonest);
  return soonest != kNever;
}

bool Moves::wait_for_memory(int b) {
  for (const int d : graph_.block(b).devices) {
    if (room_[d] == kUnlimited || used_[d] + needed_[b] <= room_[d]) continue;
    Nanoseconds soonest = kNever;
    for (const int c : graph_.on_device(d)) {
      if (memory_[c] < 0 && start_[c] != kNever) soonest = std::min(soonest, start_[c] + time_[c]);
    }
    if (soonest == kNever) return false;
    floor_[b] = std::max(floor_[b], soonest);
  }
  return true;
}

bool Moves::in_time() {
  for (const int b : order_) {
    if (count_[b] < due_[b] && start_[b] + time_[b] + windows_after(b, count_[b]) > deadline_) return false;
  }
  for (int d = 0; d < graph_.devices(); ++d) {
    if (!device_in_time(d)) return false;
  }
  return true;
}

/// All sets of blocks by their next start: the work left in them, and what follows the last.
bool Moves::device_in_time(int d) const {
  for (const int b : graph_.on_device(d)) {
    if (count_[b] >= due_[b]) continue;
    Nanoseconds work = 0, after = kNever;
    for (const int c : graph_.on_device(d)) {
      if (count_[c] >= due_[c] || start_[c] < start_[b]) continue;
      work += (due_[c] - count_[c]) * time_[c];
      after = std::min(after, windows_after(c, due_[c] - 1));
    }
    if (start_[b] + work + after > deadline_) return false;
  }
  return true;
}

void Moves::run(const Choice& choice, int sign) {
  const int b = choice.block;
  if (sign < 0) --count_[b];
  end(b, count_[b]) = choice.start + time_[b];
  sum_ += sign * static_cast<Wide>(choice.start);
  for (const int d : graph_.block(b).devices) used_[d] += sign * memory_[b];
  if (sign > 0) ++count_[b];
}

bool Moves::append(const Choice& choice, Partial& result) {
  const Nanoseconds cursor = cursor_;
  const int last = last_;
  free_before_ = free_;
  run(choice, 1);
  cursor_ = choice.start;
  last_ = place_[choice.block];
  for (const int d : graph_.block(choice.block).devices) free_[d] = choice.start + time_[choice.block];
  find_starts();
  const bool alive = raise_floors() && in_time();
  if (alive) store(result);
  run(choice, -1);
  cursor_ = cursor;
  last_ = last;
  free_.swap(free_before_);
  return alive;
}

}  // namespace ostinato::checker
