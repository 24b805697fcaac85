#include "search/modulo.h"

#include <algorithm>
#include <utility>

namespace ostinato {
namespace {

/// A pair of blocks that nothing relates may lie this many periods further apart than it must.
constexpr std::int64_t kSlack = 3;

std::int64_t floor_divide(Nanoseconds value, Nanoseconds by) {
  return value >= 0 ? value / by : -((-value + by - 1) / by);
}
std::int64_t ceil_divide(Nanoseconds value, Nanoseconds by) { return -floor_divide(-value, by); }

}  // namespace

LongestPaths::LongestPaths(int items) : items_(items) {
  length_.assign(static_cast<std::size_t>(items) * static_cast<std::size_t>(items), kNone);
  for (int x = 0; x < items; ++x) length_[index(x, x)] = 0;
}

bool LongestPaths::add(int x, int y, Nanoseconds weight) {
  if (get(x, y) >= weight) return true;
  if (get(y, x) > -weight) return false;
  sources_.clear();
  targets_.clear();
  for (int i = 0; i < items_; ++i) {
    if (get(i, x) > kNone && get(i, x) + weight > get(i, y)) sources_.push_back(i);
    if (get(y, i) > kNone && get(y, i) + weight > get(x, i)) targets_.push_back(i);
  }
  work_ += 2 * items_ + static_cast<std::int64_t>(sources_.size() * targets_.size());
  for (const int i : sources_) {
    const Nanoseconds to_y = get(i, x) + weight;
    for (const int j : targets_) {
      const std::size_t at = index(i, j);
      const Nanoseconds through = to_y + get(y, j);
      if (through <= length_[at]) continue;
      changes_.push_back({at, length_[at]});
      length_[at] = through;
    }
  }
  return true;
}

void LongestPaths::undo(std::size_t mark) {
  while (changes_.size() > mark) {
    length_[changes_.back().at] = changes_.back().before;
    changes_.pop_back();
  }
}

ModuloProblem::ModuloProblem(const Instance& instance, int unroll)
    : in_(instance), unroll_(unroll), items_(instance.blocks() * unroll), paths_(items_), initial_(items_) {
  on_device_.resize(static_cast<std::size_t>(in_.devices()));
  for (int x = 0; x < items_; ++x) {
    for (const int d : in_.devices_of(block(x))) on_device_[d].push_back(x);
  }
  std::vector<std::vector<char>> seen(static_cast<std::size_t>(items_), std::vector<char>(items_, 0));
  for (const auto& items : on_device_) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      for (std::size_t j = i + 1; j < items.size(); ++j) {
        const int x = std::min(items[i], items[j]);
        const int y = std::max(items[i], items[j]);
        if (!std::exchange(seen[x][y], 1)) pairs_.push_back({x, y});
      }
    }
  }
  add_dependencies();
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

/// By how many periods y may run later than x.
ModuloProblem::Range ModuloProblem::range(int x, int y) const {
  const Nanoseconds least = paths_.get(x, y);
  const Nanoseconds back = paths_.get(y, x);
  const Nanoseconds time_x = in_.time(block(x));
  const Nanoseconds time_y = in_.time(block(y));
  const bool below = least > LongestPaths::kNone;
  const bool above = back > LongestPaths::kNone;
  if (!below && !above) return {0, kSlack};
  Range range{0, 0};
  if (below) range.least = ceil_divide(least - (period_ - time_y), period_);
  if (above) range.most = floor_divide(-back - time_x, period_);
  if (!below) range.least = range.most - kSlack;
  if (!above) range.most = range.least + kSlack;
  return range;
}

bool ModuloProblem::decide(std::size_t p, std::int64_t k) {
  Pair& pair = pairs_[p];
  pair.decided = true;
  pair.k = k;
  trail_.push_back(p);
  return paths_.add(pair.x, pair.y, in_.time(block(pair.x)) + k * period_) &&
         paths_.add(pair.y, pair.x, in_.time(block(pair.y)) - (k + 1) * period_);
}

/// Decides every pair that has one choice left; false if one has none or the memory cannot fit.
bool ModuloProblem::propagate() {
  for (bool again = true; again;) {
    again = false;
    looked_at_ += static_cast<std::int64_t>(pairs_.size());
    if (out_of_work()) return false;
    for (std::size_t p = 0; p < pairs_.size(); ++p) {
      if (pairs_[p].decided) continue;
      const Range r = range(pairs_[p].x, pairs_[p].y);
      if (r.least > r.most) return false;
      if (r.least < r.most) continue;
      if (!decide(p, r.least)) return false;
      again = true;
    }
  }
  return memory_fits();
}

/// A lower bound on what device d holds at the start of item x, over all choices left. A block that started
/// (or, giving back, ended) k periods before x has done so k + 1 times, counted from an instant that is the
/// same for all blocks.
Bytes ModuloProblem::least_usage(int d, int x) const {
  const Bytes own = in_.memory(block(x));
  Bytes usage = std::max<Bytes>(0, own) + in_.workspace(block(x));
  for (const int y : on_device_[d]) {
    const Bytes change = in_.memory(block(y));
    if (y == x || change == 0) continue;
    const Range r = range(y, x);
    usage += change * ((change > 0 ? r.least : r.most) + 1);
  }
  return usage;
}

bool ModuloProblem::memory_fits() {
  for (int d = 0; d < in_.devices(); ++d) {
    if (!in_.limited(d)) continue;
    looked_at_ += static_cast<std::int64_t>(on_device_[d].size() * on_device_[d].size());
    for (const int x : on_device_[d]) {
      if (least_usage(d, x) > in_.room(d)) return false;
    }
  }
  return true;
}

ModuloProblem::Outcome ModuloProblem::branch() {
  std::size_t chosen = pairs_.size();
  std::int64_t fewest = 0;
  Range best{0, 0};
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    if (pairs_[p].decided) continue;
    const Range r = range(pairs_[p].x, pairs_[p].y);
    if (chosen < pairs_.size() && r.most - r.least >= fewest) continue;
    chosen = p;
    fewest = r.most - r.least;
    best = r;
  }
  if (chosen == pairs_.size()) return Outcome::found;
  const std::size_t changes = paths_.mark();
  const std::size_t decisions = trail_.size();
  // Fewer periods between an input and what follows it hold less memory: the smaller |k| first.
  const bool forwards = paths_.get(pairs_[chosen].x, pairs_[chosen].y) > LongestPaths::kNone;
  for (std::int64_t i = 0; i <= best.most - best.least; ++i) {
    if (--nodes_ < 0 || out_of_work() || (stop_ && stop_())) return Outcome::limit;
    if (decide(chosen, forwards ? best.least + i : best.most - i) && propagate()) {
      const Outcome outcome = branch();
      if (outcome != Outcome::none) return outcome;
    }
    paths_.undo(changes);
    while (trail_.size() > decisions) {
      pairs_[trail_.back()].decided = false;
      trail_.pop_back();
    }
  }
  return Outcome::none;
}

ModuloProblem::Outcome ModuloProblem::solve(Nanoseconds period, std::int64_t nodes, std::int64_t& work,
                                            const std::function<bool()>& stop) {
  period_ = period;
  nodes_ = nodes;
  stop_ = stop;
  paths_ = initial_;
  looked_at_ = 0;
  work_limit_ = paths_.work() + work;
  trail_.clear();
  for (Pair& pair : pairs_) pair.decided = false;
  bool possible = true;
  // The copies of a block follow each other within one period.
  for (std::size_t p = 0; p < pairs_.size() && possible; ++p) {
    if (block(pairs_[p].x) == block(pairs_[p].y)) possible = decide(p, 0);
  }
  Outcome outcome = possible && propagate() ? branch() : Outcome::none;
  if (outcome == Outcome::none && out_of_work()) outcome = Outcome::limit;
  work = std::max<std::int64_t>(0, work_limit_ - paths_.work() - looked_at_);
  if (outcome == Outcome::found) start_ = *starts_at(period);
  return outcome;
}

/// Earliest starts under the decided pairs (Bellman-Ford); nullopt if the period is too short for them.
std::optional<std::vector<Nanoseconds>> ModuloProblem::starts_at(Nanoseconds period) const {
  std::vector<Nanoseconds> start(static_cast<std::size_t>(items_), 0);
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
          after(copy * in_.blocks() + e.block, copy * in_.blocks() + b, in_.time(e.block) + e.transfer);
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
