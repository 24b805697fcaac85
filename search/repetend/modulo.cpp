// SPDX-License-Identifier: Apache-2.0
// What solve() does, for one period (modulo.h has the model):
// 1. begin(): the longest paths start from the dependencies. It adds what modulo_compress.h allows to
//    assume, and fixes the copies of a block to follow each other within one period.
// 2. propagate(): decides every pair that has one value left, until none does; then memory (average, peaks,
//    and the k that the room still allows); both until nothing changes.
// 3. branch(): takes the pair with the fewest values for its failures and splits its range where the least
//    memory is held; a half that fails is undone, and the loop goes on with the other half.
// 4. When all pairs are decided, starts_at() computes the earliest starts (Bellman-Ford). tighten() may then
//    bisect for the least period that the decided k admit.
// `none` is a proof only if a limited memory is balanced and no block changes it in no time; else it becomes
// `limit`. Work counts looks at pairs, memory and paths, so the outcome is the same on every machine.
#include "search/repetend/modulo.h"

#include <algorithm>
#include <map>
#include <utility>

#include "search/bounds/feasible.h"
#include "search/numbers/random.h"
#include "search/repetend/repetend.h"

namespace ostinato {
namespace {

using Wide = __int128;

std::int64_t floor_divide(Nanoseconds value, Nanoseconds by) {
  return value >= 0 ? value / by : -((-value + by - 1) / by);
}
std::int64_t ceil_divide(Nanoseconds value, Nanoseconds by) { return -floor_divide(-value, by); }

}  // namespace

ModuloProblem::ModuloProblem(const Instance& instance, int unroll)
    : in_(instance),
      compression_(compress(instance)),
      unroll_(unroll),
      items_(instance.blocks() * unroll),
      initial_(items_),
      paths_(items_) {
  add_pairs();
  add_dependencies();
}

void ModuloProblem::add_pairs() {
  on_device_.resize(in_.devices());
  for (int x = 0; x < items_; ++x) {
    for (const int d : in_.devices_of(block(x))) on_device_[d].push_back(x);
  }
  const auto in_no_time = [&](int item) { return in_.time(block(item)) == 0; };
  std::map<std::pair<int, int>, int> shared;
  for (const auto& items : on_device_) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      for (std::size_t j = i + 1; j < items.size(); ++j) {
        if (!in_no_time(items[i]) || !in_no_time(items[j])) ++shared[{items[i], items[j]}];
      }
    }
  }
  for (const auto& [pair, devices] : shared) pairs_.push_back({pair.first, pair.second, devices});
}

/// Dependencies within a micro-batch, and the micro-batches of a block in index order.
void ModuloProblem::add_dependencies() {
  for (int x = 0; x < items_; ++x) {
    for (const Edge& e : in_.inputs(block(x))) {
      const int input = x - block(x) + e.block;
      initial_.add(input, x, in_.time(e.block) + e.transfer);
    }
    if (x >= in_.blocks()) initial_.add(x - in_.blocks(), x, in_.time(block(x)));
  }
  initial_.keep();
}

/// By how many periods y may run later than x. Two of no time may share an instant: y has run then.
ModuloProblem::Range ModuloProblem::range(int x, int y) const {
  const Nanoseconds least = std::max(paths_.get(x, y), -reach_);
  const Nanoseconds back = std::max(paths_.get(y, x), -reach_);
  if (in_.time(block(x)) == 0 && in_.time(block(y)) == 0)
    return {floor_divide(least, period_), floor_divide(-back, period_)};
  return {ceil_divide(least - (period_ - in_.time(block(y))), period_),
          floor_divide(-back - in_.time(block(x)), period_)};
}

bool ModuloProblem::decide(Pair& pair, std::int64_t k) {
  pair.decided = true;
  pair.k = k;
  trail_.push_back(static_cast<std::size_t>(&pair - pairs_.data()));
  return at_least(pair.x, pair.y, k) && at_most(pair.x, pair.y, k);
}

/// Decides every pair that has one value left; false if one has none.
bool ModuloProblem::decide_forced(bool& again) {
  looked_at_ += static_cast<std::int64_t>(pairs_.size());
  for (Pair& pair : pairs_) {
    if (pair.decided) continue;
    const Range r = range(pair.x, pair.y);
    if (r.least < r.most) continue;
    if (r.least > r.most || !decide(pair, r.least)) {
      ++pair.failed;
      return false;
    }
    again = true;
  }
  return true;
}

/// To the fixpoint; false where something has no value left, or the work has run out.
bool ModuloProblem::propagate() {
  for (bool again = true; again;) {
    again = false;
    if (out_of_work() || !decide_forced(again)) return false;
    if (!again && limited_ && !propagate_memory(again)) return false;
  }
  return true;
}

/// Of item x itself when it starts. What gives back in no time has done so at that instant.
Bytes ModuloProblem::own_usage(int x) const {
  const int b = block(x);
  return (in_.time(b) > 0 ? std::max<Bytes>(0, in_.memory(b)) : in_.memory(b)) + in_.workspace(b);
}

/// A lower bound on what device d holds at the start of item x, over all choices left. A block that started
/// (or, giving back, ended) k periods before x has done so k + 1 times, counted from an instant that is the
/// same for all blocks.
Wide ModuloProblem::least_usage(int d, int x) const {
  Wide usage = own_usage(x);
  for (const int y : on_device_[d]) {
    const Bytes change = in_.memory(block(y));
    if (y == x || change == 0) continue;
    const Range r = range(y, x);
    usage += static_cast<Wide>(change) * ((change > 0 ? r.least : r.most) + 1);
  }
  return usage;
}

/// No block may lie so many periods off that the device would hold more than `room` at the start of x.
bool ModuloProblem::tighten_usage(int d, int x, Bytes room, bool& again) {
  const Wide spare = room - least_usage(d, x);
  if (spare < 0) return false;
  for (const int y : on_device_[d]) {
    const Bytes change = in_.memory(block(y));
    if (y == x || change == 0) continue;
    const Range r = range(y, x);
    if (r.most - r.least <= spare / std::abs(change)) continue;
    const auto further = static_cast<std::int64_t>(spare / std::abs(change));
    const std::size_t before = paths_.mark();
    if (!(change > 0 ? at_most(y, x, r.least + further) : at_least(y, x, r.most - further))) return false;
    again = again || paths_.mark() > before;
  }
  return true;
}

bool ModuloProblem::propagate_memory(bool& again) {
  if (!average_fits()) return false;
  std::vector<Wide> peak(in_.devices(), 0);
  Wide total = 0;
  for (int d = 0; d < in_.devices(); ++d) {
    looked_at_ += 2 * static_cast<std::int64_t>(on_device_[d].size() * on_device_[d].size());
    for (const int x : on_device_[d]) peak[d] = std::max<Wide>(peak[d], least_usage(d, x));
    total += peak[d];
  }
  if (total > limits_.total) return false;
  for (int d = 0; d < in_.devices(); ++d) {
    const Wide left = limits_.total - (total - peak[d]);
    const Bytes room = static_cast<Bytes>(std::min<Wide>(limits_.room[d], left));
    if (room == kUnlimited) continue;
    for (const int x : on_device_[d]) {
      if (!tighten_usage(d, x, room, again)) return false;
    }
  }
  return true;
}

/// Bytes times how long they are held at least, over one period, against the room.
bool ModuloProblem::average_fits() {
  if (!compression_.balanced) return true;
  std::vector<Wide> held(in_.devices(), 0);
  for (const Compression::Match& m : compression_.matches) {
    for (int copy = 0; copy < unroll_; ++copy) {
      const Nanoseconds until = paths_.get(item(copy, m.take), item(copy, m.give)) + in_.time(m.give);
      held[m.device] += static_cast<Wide>(m.bytes) * until;
    }
  }
  Wide total = 0;
  for (int d = 0; d < in_.devices(); ++d) {
    for (const int b : in_.blocks_on(d))
      held[d] += static_cast<Wide>(unroll_) * in_.workspace(b) * in_.time(b);
    if (limits_.room[d] != kUnlimited && held[d] > static_cast<Wide>(limits_.room[d]) * period_) return false;
    total += (held[d] + period_ - 1) / period_;
  }
  return total <= limits_.total;
}

/// The undecided pair with the fewest values for its failures, or their number if none is left.
std::size_t ModuloProblem::choose() const {
  std::size_t chosen = pairs_.size();
  Wide fewest = 0;
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    if (pairs_[p].decided) continue;
    const Range r = range(pairs_[p].x, pairs_[p].y);
    const Wide values = r.most - r.least;
    if (chosen < pairs_.size() && values * pairs_[chosen].failed >= fewest * pairs_[p].failed) continue;
    chosen = p;
    fewest = values;
  }
  return chosen;
}

void ModuloProblem::undo(const Mark& mark) {
  paths_.undo(mark.changes);
  for (; trail_.size() > mark.decisions; trail_.pop_back()) pairs_[trail_.back()].decided = false;
}

/// Fewer periods between an input and what follows it hold less memory: the smaller |k| first.
ModuloProblem::Split ModuloProblem::split_at(int x, int y, const Range& r) const {
  if (initial_.get(y, x) > kNoPath) return {r.most - 1, false};
  if (initial_.get(x, y) > kNoPath || r.least >= 0) return {r.least, true};
  return {std::min<std::int64_t>(-1, r.most - 1), false};
}

ModuloProblem::Outcome ModuloProblem::branch() {
  for (;;) {
    const std::size_t chosen = choose();
    looked_at_ += static_cast<std::int64_t>(pairs_.size());
    if (chosen == pairs_.size()) return Outcome::found;
    if (--effort_->nodes < 0 || out_of_work() || (effort_->stop && effort_->stop())) return Outcome::limit;
    const int x = pairs_[chosen].x;
    const int y = pairs_[chosen].y;
    const Range r = range(x, y);
    const Split split = split_at(x, y, r);
    const Mark before = mark();
    if ((split.below_first ? at_most(x, y, split.k) : at_least(x, y, split.k + 1)) && propagate()) {
      const Outcome outcome = branch();
      if (outcome != Outcome::none) return outcome;
    }
    undo(before);
    if (out_of_work()) return Outcome::limit;
    ++pairs_[chosen].failed;
    if (!(split.below_first ? at_least(x, y, split.k + 1) : at_most(x, y, split.k)) || !propagate()) {
      return out_of_work() ? Outcome::limit : Outcome::none;
    }
  }
}

/// What modulo_compress.h allows to assume; false on a contradiction.
bool ModuloProblem::keep_compressed() {
  if (limited_ && !compression_.balanced) return true;
  const Nanoseconds spare = (unroll_ > 1 ? 2 : 1) * period_;
  for (const Compression::Bridge& bridge : compression_.bridges) {
    for (int copy = 0; copy < unroll_; ++copy) {
      if (!paths_.add(item(copy, bridge.to), item(copy, bridge.from), 1 - spare - bridge.weight))
        return false;
    }
  }
  const int first = compression_.anchors.front();
  for (const int anchor : compression_.anchors) {
    if (anchor == first) continue;
    if (!paths_.add(first, anchor, 0) || !paths_.add(anchor, first, 1 - period_)) return false;
  }
  // The micro-batches can be renumbered so that the longest wait of a block comes after its first.
  return unroll_ == 1 || paths_.add(first, item(1, first), ceil_divide(period_, unroll_));
}

/// No two items of a connected part are further apart.
Wide ModuloProblem::reach() const {
  return compression_.reach + static_cast<Wide>(unroll_ > 1 ? 2 : 1) * (in_.blocks() + 1) * period_;
}

/// A path goes through every item at most, and must not be as long as none: for blocks of weeks.
bool ModuloProblem::too_long() const { return items_ * (reach() + 2 * period_) > -kNoPath / 2; }

bool ModuloProblem::begin() {
  paths_ = initial_;
  trail_.clear();
  for (Pair& pair : pairs_) {
    pair.decided = false;
    pair.failed = pair.shared;
  }
  reach_ = static_cast<Nanoseconds>(reach());
  if (!keep_compressed()) return false;
  // The copies of a block follow each other within one period.
  for (int x = in_.blocks(); x < items_; ++x) {
    if (in_.time(block(x)) == 0 && !paths_.add(x, block(x), -period_)) return false;
  }
  for (Pair& pair : pairs_) {
    if (block(pair.x) == block(pair.y) && !decide(pair, 0)) return false;
  }
  return propagate();
}

ModuloProblem::Outcome ModuloProblem::solve(Nanoseconds period, const ModuloLimits& limits,
                                            ModuloEffort& effort) {
  period_ = period;
  limits_ = limits;
  limits_.room.resize(in_.devices(), kUnlimited);
  limited_ = limits_.total != ModuloLimits().total ||
             std::any_of(limits_.room.begin(), limits_.room.end(), [](Bytes r) { return r != kUnlimited; });
  effort_ = &effort;
  looked_at_ = 0;
  work_limit_ = initial_.work() + effort.work;
  if (too_long()) return Outcome::limit;
  Outcome outcome = begin() ? branch() : Outcome::none;
  // Without balance nothing bounds how far two blocks lie apart.
  const bool no_proof = !compression_.balanced || memory_in_no_time(in_);
  if (outcome == Outcome::none && (out_of_work() || (limited_ && no_proof))) outcome = Outcome::limit;
  effort.work = std::max<std::int64_t>(0, work_limit_ - paths_.work() - looked_at_);
  if (outcome != Outcome::found) return outcome;
  std::vector<Nanoseconds> before = std::exchange(start_, starts_at(period).value());
  if (!limited_ || !memory_in_no_time(in_) || fits()) return outcome;
  start_ = std::move(before);
  return Outcome::limit;
}

void ModuloProblem::reorder(std::uint64_t seed) {
  Random random(seed);
  for (int i = static_cast<int>(pairs_.size()) - 1; i > 0; --i)
    std::swap(pairs_[i], pairs_[random.below(i + 1)]);
}

/// Whether the starts keep to the limits, whatever was decided.
bool ModuloProblem::fits() const {
  const std::vector<Bytes> held = held_by(in_, {.period = period_, .unroll = unroll_, .start = start_});
  Wide total = 0;
  for (int d = 0; d < in_.devices(); ++d) {
    if (held[d] > limits_.room[d]) return false;
    total += held[d];
  }
  return total <= limits_.total;
}

/// Earliest starts under the decided pairs (Bellman-Ford); nullopt if the period is too short for them.
std::optional<std::vector<Nanoseconds>> ModuloProblem::starts_at(Nanoseconds period) const {
  std::vector<Nanoseconds> start(items_, 0);
  for (int round = 0; round <= items_; ++round) {
    bool changed = false;
    const auto after = [&](int x, int y, Nanoseconds weight) {
      if (start[x] + weight <= start[y]) return;
      start[y] = start[x] + weight;
      changed = true;
    };
    for (int copy = 0; copy < unroll_; ++copy) {
      for (const int b : in_.topological()) {
        for (const Edge& e : in_.inputs(b)) {
          after(item(copy, e.block), item(copy, b), in_.time(e.block) + e.transfer);
        }
      }
    }
    for (const Pair& pair : pairs_) {
      after(pair.x, pair.y, in_.time(block(pair.x)) + pair.k * period);
      after(pair.y, pair.x, in_.time(block(pair.y)) - (pair.k + 1) * period);
    }
    if (!changed) return start;
  }
  return std::nullopt;
}

Nanoseconds ModuloProblem::tighten(Nanoseconds at_least, Nanoseconds found) {
  while (at_least < found) {
    const Nanoseconds middle = at_least + (found - at_least) / 2;
    if (auto starts = starts_at(middle)) {
      start_ = std::move(*starts);
      found = middle;
    } else {
      at_least = middle + 1;
    }
  }
  return found;
}

}  // namespace ostinato
