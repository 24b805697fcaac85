// SPDX-License-Identifier: Apache-2.0
// For one direction of time, level by level (docs/bounds.md, E; a level holds partial schedules of equally
// many steps):
// 1. choices(): the next step of each block that has its inputs and its memory, that could not have started
//    before the last step (E2), and that starts before a harmless step would end (E3).
// 2. Each child is dropped if may_end_in_time() shows that some step, or the work left on a device, misses
//    the deadline.
// 3. Of children with equal counts only those stay that no other one dominates (E4).
// If a level is empty, no schedule meets the deadline. Work counts blocks per child; all states of two
// levels are in memory. One of them is open at a time: a child is a step appended to it, which is undone, and
// stored only if it may end in time.
#include "search/bounds/trial.h"

#include <algorithm>
#include <unordered_map>

namespace ostinato {
namespace {

constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max() / 4;

/// A partial schedule as it is stored. States with equal counts have times that mean the same.
struct State {
  std::vector<int> count;          ///< steps begun, per block
  std::vector<Nanoseconds> times;  ///< per device from when it is free; then the ends still waited for
  std::vector<Nanoseconds> tells;  ///< of these, what decides how it may go on
  Nanoseconds cursor = 0;          ///< start of the last step
  int last = -1;                   ///< place of its block among those of one start
  __int128 sum = 0;                ///< of all starts
  bool out = false;                ///< dominated by a later one

  /// E4, of states with equal counts.
  bool dominates(const State& other) const {
    if (sum > other.sum || cursor > other.cursor || (cursor == other.cursor && last > other.last))
      return false;
    return std::equal(tells.begin(), tells.end(), other.tells.begin(), std::less_equal<>());
  }
};

struct Hash {
  std::size_t operator()(const std::vector<int>& counts) const {
    std::uint64_t hash = 0;
    for (const int c : counts) hash = (hash + static_cast<std::uint64_t>(c) + 1) * 0x9e3779b97f4a7c15ULL;
    return hash ^ hash >> 31;
  }
};

class Level {
 public:
  std::vector<State> states;

  void add(const State& state) {
    std::vector<std::size_t>& same = same_counts_[state.count];
    for (const std::size_t i : same) {
      if (states[i].dominates(state)) return;
    }
    std::erase_if(same, [&](std::size_t i) {
      states[i].out = state.dominates(states[i]);
      return states[i].out;
    });
    same.push_back(states.size());
    states.push_back(state);
  }

 private:
  std::unordered_map<std::vector<int>, std::vector<std::size_t>, Hash> same_counts_;
};

class OneWay {
 public:
  OneWay(const Instance& in, const Windows& windows, Nanoseconds deadline)
      : in_(in),
        windows_(windows),
        n_(windows.micro_batches()),
        deadline_(deadline),
        longest_(in.blocks(), 0),
        start_(longest_),
        floor_(longest_),
        ready_(longest_.size()),
        count_(longest_.size(), 0),
        free_(in.devices(), 0),
        ends_(longest_.size() * n_, 0),
        used_(free_.size(), 0) {
    std::vector<int> places(in.topological().begin(), in.topological().end());
    // At one start, what takes no time comes first: what starts then may wait for it.
    std::stable_partition(places.begin(), places.end(), [&](int b) { return in.time(b) == 0; });
    place_.resize(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) place_[places[i]] = static_cast<int>(i);
    for (int b = 0; b < in.blocks(); ++b) {
      for (const Edge& e : in.followers(b)) longest_[b] = std::max(longest_[b], e.transfer);
      due_.push_back(n_);
      while (due_[b] > 0 && after(b, due_[b] - 1) == kUnknown) --due_[b];
    }
  }

  Trial::Verdict run(std::int64_t most_work, std::int64_t& work, const std::function<bool()>& stop) {
    Level level;
    State child;
    store(child);
    level.add(child);
    for (int step = 0; step < n_ * in_.blocks(); ++step) {
      Level next;
      for (const State& state : level.states) {
        if (state.out) continue;
        open(state);
        for (const auto& [block, start] : choices()) {
          work += in_.blocks();
          append(block, start);
          if (may_end_in_time()) {
            store(child);
            next.add(child);
          }
          undo(block, state);
        }
        if (work > most_work || (stop && stop())) return Trial::unknown;
      }
      if (next.states.empty()) return Trial::none;
      level = std::move(next);
    }
    return Trial::some;
  }

 private:
  Nanoseconds earliest(int b, int i) const { return windows_.start(b, i, in_.mirrored()); }
  Nanoseconds after(int b, int i) const { return windows_.start(b, n_ - 1 - i, !in_.mirrored()); }
  std::size_t at(int b, int i) const { return static_cast<std::size_t>(b) * n_ + i; }
  Bytes needed(int b) const { return std::max<Bytes>(0, in_.memory(b)) + in_.workspace(b); }

  /// The first micro-batch whose end a follower of the block still waits for.
  int oldest_end(int b) const {
    int oldest = count_[b];
    for (const Edge& e : in_.followers(b)) oldest = std::min(oldest, count_[e.block]);
    return oldest;
  }

  void open(const State& state) {
    count_ = state.count;
    auto time = state.times.begin() + in_.devices();
    std::copy(state.times.begin(), time, free_.begin());
    std::fill(used_.begin(), used_.end(), 0);
    for (int b = 0; b < in_.blocks(); ++b) {
      for (int i = oldest_end(b); i < count_[b]; ++i) ends_[at(b, i)] = *time++;
      for (const int d : in_.devices_of(b)) used_[d] += in_.memory(b) * count_[b];
    }
    cursor_ = state.cursor;
    last_ = state.last;
    sum_ = state.sum;
  }

  void append(int b, Nanoseconds start) {
    ends_[at(b, count_[b]++)] = start + in_.time(b);
    cursor_ = start;
    last_ = place_[b];
    sum_ += start;
    for (const int d : in_.devices_of(b)) {
      free_[d] = start + in_.time(b);
      used_[d] += in_.memory(b);
    }
  }

  /// After append(), with the state that was open before. The step's end may stay: only ends of begun steps
  /// are read.
  void undo(int b, const State& state) {
    --count_[b];
    cursor_ = state.cursor;
    last_ = state.last;
    sum_ = state.sum;
    for (const int d : in_.devices_of(b)) {
      free_[d] = state.times[d];
      used_[d] -= in_.memory(b);
    }
  }

  void store(State& state) const {
    state.count = count_;
    state.times = free_;
    state.tells.clear();
    // What lies before the cursor is all the same: nothing starts there.
    for (const Nanoseconds free : free_) state.tells.push_back(std::max(free, cursor_ - 1));
    for (int b = 0; b < in_.blocks(); ++b) {
      for (int i = oldest_end(b); i < count_[b]; ++i) {
        state.times.push_back(ends_[at(b, i)]);
        state.tells.push_back(std::max(ends_[at(b, i)], cursor_ - 1 - longest_[b]));
      }
    }
    state.cursor = cursor_;
    state.last = last_;
    state.sum = sum_;
  }

  bool full(int b, int d) const { return in_.limited(d) && used_[d] + needed(b) > in_.room(d); }
  bool fits(int b) const {
    const auto devices = in_.devices_of(b);
    return needed(b) == 0 || std::none_of(devices.begin(), devices.end(), [&](int d) { return full(b, d); });
  }
  /// E3: running it sooner disturbs nothing.
  bool harmless(int b) const {
    const auto devices = in_.devices_of(b);
    return needed(b) == 0 ||
           std::none_of(devices.begin(), devices.end(), [&](int d) { return in_.limited(d); });
  }
  /// E2: it could have started before the last step.
  bool passed(int b) const { return start_[b] < cursor_ || (start_[b] == cursor_ && place_[b] < last_); }

  /// start_ of the next step of every block, no sooner than floor_; ready_: nothing but its turn is missing.
  void find_starts() {
    for (const int b : in_.topological()) {
      const int i = count_[b];
      ready_[b] = i < n_ && fits(b);
      start_[b] = i < n_ ? floor_[b] : kNever;
      if (i == n_) continue;
      for (const int d : in_.devices_of(b)) start_[b] = std::max(start_[b], free_[d]);
      for (const Edge& e : in_.inputs(b)) {
        const bool begun = count_[e.block] > i;
        ready_[b] = ready_[b] && begun;
        const Nanoseconds end = begun ? ends_[at(e.block, i)] : start_[e.block] + in_.time(e.block);
        start_[b] = std::max(start_[b], end + e.transfer);
      }
      if (!ready_[b]) start_[b] = std::max(start_[b], cursor_);
    }
  }

  std::vector<std::pair<int, Nanoseconds>> choices() {
    std::fill(floor_.begin(), floor_.end(), 0);
    find_starts();
    Nanoseconds horizon = kNever;
    for (int b = 0; b < in_.blocks(); ++b) {
      if (ready_[b] && harmless(b))
        horizon = std::min(horizon, start_[b] + std::max<Nanoseconds>(1, in_.time(b)));
    }
    std::vector<std::pair<int, Nanoseconds>> result;
    for (const int b : in_.topological()) {
      if (ready_[b] && !passed(b) && start_[b] < horizon) result.emplace_back(b, start_[b]);
    }
    return result;
  }

  bool may_end_in_time() {
    std::fill(floor_.begin(), floor_.end(), 0);
    find_starts();
    for (int b = 0; b < in_.blocks(); ++b) {
      const int i = count_[b];
      if (i == n_) continue;
      floor_[b] = earliest(b, i);
      const Nanoseconds turn = ready_[b] ? (passed(b) ? other_step(b) : 0) : (fits(b) ? 0 : memory_back(b));
      if (turn == kNever) return false;
      floor_[b] = std::max(floor_[b], turn);
    }
    find_starts();
    for (int b = 0; b < in_.blocks(); ++b) {
      const int i = count_[b];
      if (i < due_[b] && start_[b] + in_.time(b) + after(b, i) > deadline_) return false;
    }
    for (int d = 0; d < in_.devices(); ++d) {
      if (!device_in_time(d)) return false;
    }
    return true;
  }

  /// The first end of another next step on one of its devices.
  Nanoseconds other_step(int b) const {
    Nanoseconds soonest = kNever;
    for (const int d : in_.devices_of(b)) {
      for (const int c : in_.blocks_on(d)) {
        if (c != b && start_[c] != kNever)
          soonest = std::min(soonest, std::max(start_[c], cursor_) + in_.time(c));
      }
    }
    return soonest;
  }

  /// The first end, on each device where it does not fit, of a step that gives back.
  Nanoseconds memory_back(int b) const {
    Nanoseconds latest = 0;
    for (const int d : in_.devices_of(b)) {
      if (!full(b, d)) continue;
      Nanoseconds soonest = kNever;
      for (const int c : in_.blocks_on(d)) {
        if (in_.memory(c) < 0 && start_[c] != kNever) soonest = std::min(soonest, start_[c] + in_.time(c));
      }
      latest = std::max(latest, soonest);
    }
    return latest;
  }

  bool device_in_time(int d) const {
    for (const int b : in_.blocks_on(d)) {
      if (count_[b] >= due_[b]) continue;
      Nanoseconds work = 0, least = kNever;
      for (const int c : in_.blocks_on(d)) {
        if (count_[c] >= due_[c] || start_[c] < start_[b]) continue;
        work += (due_[c] - count_[c]) * in_.time(c);
        least = std::min(least, after(c, due_[c] - 1));
      }
      if (start_[b] + work + least > deadline_) return false;
    }
    return true;
  }

  const Instance& in_;
  const Windows& windows_;
  const int n_;
  const Nanoseconds deadline_;
  std::vector<Nanoseconds> longest_;  ///< transfer from each block
  std::vector<Nanoseconds> start_, floor_;
  std::vector<char> ready_;
  std::vector<int> place_;
  std::vector<int> due_;  ///< of each block: from this micro-batch on, no step waits for its end
  // The state that is open, with the step that is tried:
  std::vector<int> count_;
  std::vector<Nanoseconds> free_, ends_;  ///< per device; of micro-batch i of block b at b * n + i
  std::vector<Bytes> used_;               ///< per device
  Nanoseconds cursor_ = 0;
  int last_ = -1;
  __int128 sum_ = 0;
};

}  // namespace

Trial::Verdict try_one_way(const Instance& in, const Windows& windows, Nanoseconds deadline,
                           std::int64_t most_work, std::int64_t& work, const std::function<bool()>& stop) {
  return OneWay(in, windows, deadline).run(most_work, work, stop);
}

}  // namespace ostinato
