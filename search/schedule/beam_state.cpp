// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/beam_state.h"

#include <algorithm>
#include <bit>

#include "search/numbers/random.h"

namespace ostinato {
namespace {

constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max() / 4;
constexpr int kLargestWindow = 256;
/// Of the tails on a device, this many are tried.
constexpr std::size_t kMostThresholds = 48;

}  // namespace

BeamMoves::BeamMoves(const Instance& instance, const BeamGoal& goal, int flavour)
    : in_(instance), goal_(goal), flavour_(flavour) {
  const int most = *std::max_element(goal.target.begin(), goal.target.end());
  window_ =
      std::min(kLargestWindow, static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(1, most)))));
  for (const auto& tail : goal.tail) last_tail_.push_back(tail.empty() ? 0 : tail.back());
  earliest_.resize(in_.blocks());
  for (int b = 0; b < in_.blocks(); ++b) key_.push_back(mixed(static_cast<std::uint64_t>(b)));
  thresholds_.resize(in_.devices());
  for (int d = 0; d < in_.devices(); ++d) find_thresholds(d);
}

/// Tails fall with the micro-batch, so tails of at least a threshold are the first ones of each block.
void BeamMoves::find_thresholds(int d) {
  std::vector<Nanoseconds> tails;
  for (const int b : in_.blocks_on(d)) {
    for (const Nanoseconds tail : goal_.tail[b]) tails.push_back(std::max(tail, goal_.device_tail[d]));
  }
  std::sort(tails.begin(), tails.end());
  tails.erase(std::unique(tails.begin(), tails.end()), tails.end());
  const std::size_t stride = (tails.size() + kMostThresholds - 1) / kMostThresholds;
  for (std::size_t i = 0; i < tails.size(); i += stride) {
    Threshold threshold{tails[i], {}};
    for (const int b : in_.blocks_on(d)) {
      int steps = 0;
      while (steps < goal_.target[b] && std::max(goal_.tail[b][steps], goal_.device_tail[d]) >= tails[i])
        ++steps;
      threshold.steps.push_back(steps);
    }
    thresholds_[d].push_back(std::move(threshold));
  }
}

/// Over all sets {tail >= q} of what is left on d: work + q.
Nanoseconds BeamMoves::to_go(const BeamState& state, int d) const {
  const auto blocks = in_.blocks_on(d);
  Nanoseconds most = -kNever;
  for (const Threshold& threshold : thresholds_[d]) {
    Nanoseconds work = 0;
    int steps = 0;
    for (std::size_t k = 0; k < blocks.size(); ++k) {
      const int left = std::max(0, threshold.steps[k] - state.count[blocks[k]]);
      work += left * in_.time(blocks[k]);
      steps += left;
    }
    if (steps > 0) most = std::max(most, work + threshold.tail);
  }
  return most;
}

BeamState BeamMoves::root() const {
  BeamState state;
  state.value = -kNever;
  state.count.assign(in_.blocks(), 0);
  state.free.assign(in_.devices(), 0);
  state.used.assign(state.free.size(), 0);
  state.ends.assign(state.count.size() * window_, 0);
  for (int d = 0; d < in_.devices(); ++d) state.to_go.push_back(to_go(state, d));
  return state;
}

bool BeamMoves::fits(const BeamState& state, int b) const {
  const Bytes needed = std::max<Bytes>(0, in_.memory(b)) + in_.workspace(b);
  if (needed == 0) return true;
  const auto devices = in_.devices_of(b);
  return std::all_of(devices.begin(), devices.end(),
                     [&](int d) { return !in_.limited(d) || state.used[d] + needed <= in_.room(d); });
}

bool BeamMoves::startable(const BeamState& state, int b) const {
  if (state.count[b] >= goal_.target[b] || !fits(state, b)) return false;
  for (const Edge& e : in_.inputs(b)) {
    if (state.count[e.block] <= state.count[b]) return false;
  }
  if (!goal_.waits.empty()) {
    for (const BeamGoal::Wait& wait : goal_.waits[b]) {
      if (state.count[wait.block] < wait.count[state.count[b]]) return false;
    }
  }
  // The ring must not lose an end that a follower still waits for.
  for (const Edge& e : in_.followers(b)) {
    if (state.count[b] - state.count[e.block] >= window_) return false;
  }
  return true;
}

/// Running b sooner never hurts: it takes no limited memory.
bool BeamMoves::harmless(int b) const {
  if (in_.memory(b) <= 0 && in_.workspace(b) == 0) return true;
  const auto devices = in_.devices_of(b);
  return std::none_of(devices.begin(), devices.end(), [&](int d) { return in_.limited(d); });
}

Nanoseconds BeamMoves::earliest(const BeamState& state, int b) const {
  Nanoseconds at = state.cursor;
  for (const int d : in_.devices_of(b)) at = std::max(at, state.free[d]);
  const int i = state.count[b];
  if (!goal_.head.empty()) at = std::max(at, goal_.head[b][i]);
  for (const Edge& e : in_.inputs(b)) {
    const Nanoseconds end =
        state.count[e.block] > i ? state.ends[slot(e.block, i)] : earliest_[e.block] + in_.time(e.block);
    at = std::max(at, end + e.transfer);
  }
  return at;
}

/// Lower bounds on the start of the next step of every block.
void BeamMoves::estimate(const BeamState& state) {
  for (const int b : in_.topological()) {
    earliest_[b] = state.count[b] < goal_.target[b] ? earliest(state, b) : kNever;
  }
  if (in_.any_limited()) wait_for_memory(state);
}

/// A step that does not fit waits at least for the first block on that device that gives memory back.
void BeamMoves::wait_for_memory(const BeamState& state) {
  bool waits = false;
  std::vector<Bytes>& until = scratch_;
  until.assign(earliest_.size(), 0);
  for (int b = 0; b < in_.blocks(); ++b) {
    if (earliest_[b] == kNever || fits(state, b)) continue;
    const Bytes needed = std::max<Bytes>(0, in_.memory(b)) + in_.workspace(b);
    for (const int d : in_.devices_of(b)) {
      if (!in_.limited(d) || state.used[d] + needed <= in_.room(d)) continue;
      Nanoseconds first = kNever;
      for (const int c : in_.blocks_on(d)) {
        if (in_.memory(c) < 0 && earliest_[c] != kNever) first = std::min(first, earliest_[c] + in_.time(c));
      }
      until[b] = std::max(until[b], first);
      waits = true;
    }
  }
  if (!waits) return;
  for (const int b : in_.topological()) {
    if (earliest_[b] != kNever) earliest_[b] = std::max(until[b], earliest(state, b));
  }
}

/// Over all sets {next start >= h} of what is left on d: h + work + least tail.
Nanoseconds BeamMoves::device_bound(const BeamState& state, int d) const {
  Nanoseconds bound = state.free[d] + goal_.device_tail[d];
  Nanoseconds first = kNever;
  for (const int b : in_.blocks_on(d)) first = std::min(first, earliest_[b]);
  if (first != kNever) bound = std::max(bound, first + state.to_go[d]);
  for (const int b : in_.blocks_on(d)) {
    if (earliest_[b] == kNever || earliest_[b] == first) continue;
    Nanoseconds work = 0;
    Nanoseconds tail = kNever;
    for (const int c : in_.blocks_on(d)) {
      if (earliest_[c] == kNever || earliest_[c] < earliest_[b]) continue;
      work += (goal_.target[c] - state.count[c]) * in_.time(c);
      tail = std::min(tail, last_tail_[c]);
    }
    bound = std::max(bound, earliest_[b] + work + std::max(tail, goal_.device_tail[d]));
  }
  return bound;
}

Nanoseconds BeamMoves::bound(const BeamState& state) {
  estimate(state);
  Nanoseconds bound = state.value;
  rank_ = 0;
  for (int b = 0; b < in_.blocks(); ++b) {
    if (earliest_[b] == kNever) continue;
    const Nanoseconds chain = earliest_[b] + in_.time(b) + goal_.tail[b][state.count[b]];
    bound = std::max(bound, chain);
    const __int128 left = goal_.target[b] - state.count[b];
    rank_ += flavour_ == 0 ? chain * left : flavour_ == 1 ? earliest_[b] * left : chain;
  }
  for (int d = 0; d < in_.devices(); ++d) {
    bound = std::max(bound, device_bound(state, d));
  }
  return bound;
}

void BeamMoves::apply(BeamState& state, int b, Nanoseconds start) const {
  const Nanoseconds end = start + in_.time(b);
  const int i = state.count[b]++;
  state.cursor = start;
  state.ends[slot(b, i)] = end;
  for (const int d : in_.devices_of(b)) {
    state.free[d] = end;
    state.used[d] += in_.memory(b);
    state.to_go[d] = to_go(state, d);
    state.value = std::max(state.value, end + goal_.device_tail[d]);
  }
  state.value = std::max(state.value, end + goal_.tail[b][i]);
}

void BeamMoves::children(BeamState& state, std::uint64_t hash, int parent, std::vector<BeamChild>& out) {
  estimate(state);
  std::vector<std::pair<int, Nanoseconds>> candidates;
  Nanoseconds horizon = kNever;
  for (int b = 0; b < in_.blocks(); ++b) {
    if (!startable(state, b)) continue;
    candidates.emplace_back(b, earliest_[b]);
    // A step that leaves a gap in which this one would fit without harm is dominated.
    if (harmless(b)) horizon = std::min(horizon, earliest_[b] + std::max<Nanoseconds>(1, in_.time(b)));
  }
  for (const auto& [b, start] : candidates) {
    if (start >= horizon) continue;
    const Undo undo = remember(state, b);
    apply(state, b, start);
    const Nanoseconds least = bound(state);
    take_back(state, b, undo);
    out.push_back({least, rank_, start, hash + key_[b], parent, b});
  }
}

BeamMoves::Undo BeamMoves::remember(const BeamState& state, int b) {
  free_before_.clear();
  to_go_before_.clear();
  for (const int d : in_.devices_of(b)) {
    free_before_.push_back(state.free[d]);
    to_go_before_.push_back(state.to_go[d]);
  }
  return {state.cursor, state.value, state.ends[slot(b, state.count[b])]};
}

void BeamMoves::take_back(BeamState& state, int b, const Undo& undo) const {
  const int i = --state.count[b];
  state.cursor = undo.cursor;
  state.value = undo.value;
  state.ends[slot(b, i)] = undo.end;
  std::size_t k = 0;
  for (const int d : in_.devices_of(b)) {
    state.to_go[d] = to_go_before_[k];
    state.free[d] = free_before_[k++];
    state.used[d] -= in_.memory(b);
  }
}

bool BeamMoves::safe(const BeamState& state) {
  if (!in_.any_limited()) return true;
  std::vector<Bytes> used = state.used;
  std::vector<int> count = state.count;
  const int oldest = *std::min_element(count.begin(), count.end());
  const int newest = *std::max_element(count.begin(), count.end());
  for (int i = oldest; i < newest; ++i) {
    for (const int b : in_.topological()) {
      if (count[b] > i || i >= goal_.target[b]) continue;
      for (const int d : in_.devices_of(b)) {
        const Bytes needed = std::max<Bytes>(0, in_.memory(b)) + in_.workspace(b);
        if (in_.limited(d) && used[d] + needed > in_.room(d)) return false;
        used[d] += in_.memory(b);
      }
      ++count[b];
    }
  }
  return true;
}

bool BeamMoves::dominates(const BeamState& a, const BeamState& b) const {
  if (a.cursor > b.cursor || a.value > b.value) return false;
  for (std::size_t d = 0; d < a.free.size(); ++d) {
    if (std::max(a.free[d], a.cursor) > std::max(b.free[d], b.cursor)) return false;
  }
  for (int c = 0; c < in_.blocks(); ++c) {
    int oldest = a.count[c];  // the first end of c that a follower still waits for
    for (const Edge& e : in_.followers(c)) oldest = std::min(oldest, a.count[e.block]);
    for (int i = oldest; i < a.count[c]; ++i) {
      if (a.ends[slot(c, i)] > b.ends[slot(c, i)]) return false;
    }
  }
  return true;
}

}  // namespace ostinato
