// SPDX-License-Identifier: Apache-2.0
// run() repeats until nothing changes: heads, then memory, in both directions of time; then immediate
// selection, transitivity, and a look for two steps that must each precede the other. The directions share
// the orders: what one side learns in fix() the other reads mirrored. Heads and counts only rise, and a
// count has at most `n` values, so it ends; every fact holds for all schedules that end before the limit, so
// `false` is a proof. affordable() limits one sweep: blocks^3 * n^2 per device, summed up.
#include "search/schedule/propagation.h"

#include <algorithm>

#include "search/bounds/bounds.h"
#include "search/bounds/feasible.h"

namespace ostinato {
namespace {

constexpr std::int64_t kMostLooks = 1'000'000;

bool share_a_device(std::span<const int> a, std::span<const int> b) {
  return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
}

/// Matches what is given back on d with what was taken, the longest stays first; empty where some bytes given
/// back find no block that took them.
std::vector<Propagation::MemoryPair> memory_pairs(const Instance& in, int d) {
  struct Stay {
    Nanoseconds time;
    int take;
    int give;
  };
  std::vector<Stay> stays;
  std::vector<Bytes> left(in.blocks(), 0);
  for (const int a : in.blocks_on(d)) {
    left[a] = in.memory(a);
    if (in.memory(a) <= 0) continue;
    const std::vector<Nanoseconds> distance = distances_from(in, a);
    for (const int c : in.blocks_on(d)) {
      if (in.memory(c) < 0 && distance[c] >= 0) stays.push_back({distance[c], a, c});
    }
  }
  std::stable_sort(stays.begin(), stays.end(), [](const Stay& x, const Stay& y) { return x.time > y.time; });
  std::vector<Propagation::MemoryPair> pairs;
  for (const Stay& stay : stays) {
    const Bytes bytes = std::min(left[stay.take], -left[stay.give]);
    if (bytes == 0) continue;
    left[stay.take] -= bytes;
    left[stay.give] += bytes;
    pairs.push_back({stay.take, stay.give, bytes});
  }
  for (const int b : in.blocks_on(d)) {
    if (left[b] < 0) return {};
    if (left[b] > 0) pairs.push_back({b, -1, left[b]});
  }
  return pairs;
}

}  // namespace

bool Propagation::affordable(const Instance& in, int micro_batches) {
  std::int64_t looks = 0;  // of a sweep
  for (int d = 0; d < in.devices(); ++d) {
    const auto blocks = static_cast<std::int64_t>(in.blocks_on(d).size());
    looks += blocks * blocks * blocks * micro_batches * micro_batches;
  }
  return looks <= kMostLooks && !memory_in_no_time(in);
}

Propagation::Propagation(const Instance& instance, const Instance& mirror, int micro_batches)
    : n_(micro_batches), blocks_(instance.blocks()), sides_{{&instance, {}, {}}, {&mirror, {}, {}}} {
  for (Side& side : sides_) side.head.assign(slot(blocks_, 0), 0);
  for (int d = 0; d < instance.devices(); ++d) {
    const bool limited = instance.limited(d);
    sides_[0].pairs.push_back(limited ? memory_pairs(instance, d) : std::vector<MemoryPair>());
    // Backwards a device starts empty only if all that is given back was taken.
    const bool balanced = !sides_[0].pairs.back().empty();
    sides_[1].pairs.push_back(balanced ? memory_pairs(mirror, d) : std::vector<MemoryPair>());
  }
  find_conflicts();
  order_paths();
}

void Propagation::find_conflicts() {
  const Instance& in = *sides_[0].in;
  pair_.assign(blocks_ * blocks_, -1);
  for (int a = 0; a < blocks_; ++a) {
    for (int b = 0; b < blocks_; ++b) {
      if (a == b || !share_a_device(in.devices_of(a), in.devices_of(b))) continue;
      pair_[a * blocks_ + b] = static_cast<int>(conflicts_.size());
      conflicts_.push_back({a, b});
    }
  }
  before_.assign(conflicts_.size() * n_, 0);
  after_ = before_;
}

/// Where a path leads from a to b, micro-batch i of a runs before micro-batch i of b.
void Propagation::order_paths() {
  for (int a = 0; a < blocks_; ++a) {
    const std::vector<Nanoseconds> distance = distances_from(*sides_[0].in, a);
    for (int b = 0; b < blocks_; ++b) {
      if (distance[b] < 0 || pair_[a * blocks_ + b] < 0) continue;
      for (int i = 0; i < n_; ++i) fix(0, a, i, b, i);
    }
  }
}

/// Seen from `side`: steps of a that run before step j of b.
int Propagation::forced(int side, int a, int b, int j) const {
  const auto pair = [&](int x, int y) { return static_cast<std::size_t>(pair_[x * blocks_ + y]) * n_; };
  return side == 0 ? before_[pair(a, b) + j] : after_[pair(b, a) + (n_ - 1 - j)];
}

/// Seen from `side`: the first step of c that runs after step i of x; n_ if there is none.
int Propagation::first_after(int side, int x, int i, int c) const {
  if (x == c) return i;
  const auto pair = [&](int a, int b) { return static_cast<std::size_t>(pair_[a * blocks_ + b]) * n_; };
  return n_ - (side == 0 ? after_[pair(x, c) + i] : before_[pair(c, x) + (n_ - 1 - i)]);
}

/// Seen from `side`: step i of a runs before step j of b.
void Propagation::fix(int side, int a, int i, int b, int j) {
  if (side == 1) {
    std::swap(a, b);
    std::swap(i, j);
    i = n_ - 1 - i;
    j = n_ - 1 - j;
  }
  if (count(before_, a, b, j) > i) return;
  changed_ = true;
  for (int k = j; k < n_ && count(before_, a, b, k) <= i; ++k) count(before_, a, b, k) = i + 1;
  for (int k = i; k >= 0 && count(after_, a, b, k) < n_ - j; --k) count(after_, a, b, k) = n_ - j;
}

bool Propagation::run(Nanoseconds limit) {
  do {
    changed_ = false;
    for (const int side : {0, 1}) {
      if (!raise_heads(side, limit) || !wait_for_memory(side)) return false;
    }
    select(limit);
    close();
    for (const Conflict& c : conflicts_) {
      for (int i = 0; i < n_; ++i) {
        // a_i before b_j and b_j before a_i.
        const int j = first_after(0, c.a, i, c.b);
        if (j < forced(0, c.b, c.a, i)) return false;
      }
    }
  } while (changed_);
  return true;
}

/// Until nothing changes. False where a step cannot end in time.
bool Propagation::raise_heads(int side, Nanoseconds limit) {
  const Instance& in = *sides_[side].in;
  std::vector<Nanoseconds>& head = sides_[side].head;
  const std::vector<Nanoseconds>& tail = sides_[1 - side].head;
  for (bool again = true; again;) {
    again = false;
    for (int i = 0; i < n_; ++i) {
      for (const int b : in.topological()) {
        Nanoseconds at = i > 0 ? head[slot(b, i - 1)] + in.time(b) : 0;
        for (const Edge& e : in.inputs(b))
          at = std::max(at, head[slot(e.block, i)] + in.time(e.block) + e.transfer);
        for (const int d : in.devices_of(b)) at = std::max(at, behind_forced(side, d, b, i));
        if (at > head[slot(b, i)]) {
          head[slot(b, i)] = at;
          again = changed_ = true;
        }
        if (head[slot(b, i)] + in.time(b) + tail[slot(b, n_ - 1 - i)] >= limit) return false;
      }
    }
  }
  return true;
}

/// When the steps that must run before step j of b on d have ended: over all h, h + the work of those with
/// heads of at least h.
Nanoseconds Propagation::behind_forced(int side, int d, int b, int j) {
  const Instance& in = *sides_[side].in;
  const std::vector<Nanoseconds>& head = sides_[side].head;
  const auto blocks = in.blocks_on(d);
  left_.clear();
  for (const int a : blocks) left_.push_back(a == b ? j : forced(side, a, b, j));
  Nanoseconds latest = 0;
  Nanoseconds work = 0;
  // Head; a block's next one may still be to raise.
  Nanoseconds least = std::numeric_limits<Nanoseconds>::max();
  for (;;) {
    std::size_t last = blocks.size();
    Nanoseconds highest = -1;
    for (std::size_t k = 0; k < blocks.size(); ++k) {
      if (left_[k] == 0) continue;
      const Nanoseconds h = head[slot(blocks[k], left_[k] - 1)];
      if (h > highest) {
        highest = h;
        last = k;
      }
    }
    if (last == blocks.size()) return latest;
    --left_[last];
    ++work_;
    work += in.time(blocks[last]);
    least = std::min(least, highest);
    latest = std::max(latest, least + work);
  }
}

/// b_j and then a_i would not end in time: a_i runs before b_j. Heads grow with j and tails fall with i.
void Propagation::select(Nanoseconds limit) {
  const Instance& in = *sides_[0].in;
  for (const Conflict& c : conflicts_) {
    const Nanoseconds both = in.time(c.a) + in.time(c.b);
    int j = 0;
    for (int i = 0; i < n_; ++i) {
      while (j < n_ && head(c.b, j) + both + tail(c.a, i) < limit) ++j;
      if (j == n_) break;
      fix(0, c.a, i, c.b, j);
    }
  }
}

/// False where the memory cannot do.
bool Propagation::wait_for_memory(int side) {
  const Instance& in = *sides_[side].in;
  for (int d = 0; d < in.devices(); ++d) {
    if (sides_[side].pairs[d].empty()) continue;
    for (const int x : in.blocks_on(d)) {
      if (in.memory(x) <= 0 && in.workspace(x) == 0) continue;
      for (int i = 0; i < n_; ++i) {
        if (!wait_for_memory(side, d, x, i)) return false;
      }
    }
  }
  return true;
}

/// Which gives must have come before step i of x starts on d.
bool Propagation::wait_for_memory(int side, int d, int x, int i) {
  const Instance& in = *sides_[side].in;
  if (least_in_use(side, d, x, i, -1, 0) > in.room(d)) return false;
  for (const int c : in.blocks_on(d)) {
    if (c == x || in.memory(c) >= 0) continue;
    const int most = first_after(side, x, i, c);
    int given = std::max(0, forced(side, c, x, i));
    while (given < most && least_in_use(side, d, x, i, c, given) > in.room(d)) ++given;
    if (given > forced(side, c, x, i)) fix(side, c, given - 1, x, i);
  }
  return true;
}

/// Memory in use on d while step i of x runs if exactly `given` steps of `give` ran before (-1: as many of
/// each block as may).
Bytes Propagation::least_in_use(int side, int d, int x, int i, int give, int given) const {
  const Instance& in = *sides_[side].in;
  Bytes used = in.workspace(x);
  for (const MemoryPair& pair : sides_[side].pairs[d]) {
    const int taken = pair.take == x ? i + 1 : forced(side, pair.take, x, i);
    int back = 0;
    if (pair.give >= 0) {
      back = first_after(side, x, i, pair.give);
      if (pair.give == give) {
        back = std::min(back, given);
      } else if (give >= 0 && given < n_) {
        // What runs after a step that has not run has not run either.
        back = std::min(back, first_after(side, give, given, pair.give));
      }
    }
    if (taken > back) used += pair.bytes * (taken - back);
  }
  return used;
}

/// a before b and b before c is a before c.
void Propagation::close() {
  for (const Conflict& first : conflicts_) {
    for (int c = 0; c < blocks_; ++c) {
      if (c == first.a || pair_[first.b * blocks_ + c] < 0 || pair_[first.a * blocks_ + c] < 0) continue;
      for (int k = 0; k < n_; ++k) {
        const int j = forced(0, first.b, c, k);
        if (j == 0) continue;
        const int i = forced(0, first.a, first.b, j - 1);
        if (i > forced(0, first.a, c, k)) fix(0, first.a, i - 1, c, k);
      }
    }
  }
}

}  // namespace ostinato
