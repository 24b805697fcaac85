// SPDX-License-Identifier: Apache-2.0
#include "search/repetend/sweep_steps.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

namespace ostinato {
namespace {

/// Devices that a look ahead goes through, where the states of all phases are too many.
constexpr std::size_t kAhead = 4;
/// Bytes are rounded to units; the largest block has about this many.
constexpr Bytes kMostUnits = 1000;
/// A period has no more phases.
constexpr std::int64_t kMostPhases = 1 << 30;

/// Wide blocks first, then device after device in the order in which a micro-batch first comes to them.
std::vector<int> order_of_items(const Instance& in, int unroll) {
  std::vector<int> devices;
  std::vector<char> known(in.devices(), 0);
  std::vector<int> items;
  const auto add = [&](int b) {
    for (int copy = 0; copy < unroll; ++copy) items.push_back(copy * in.blocks() + b);
  };
  for (const int b : in.topological()) {
    const auto on = in.devices_of(b);
    if (on.size() > 1) {
      add(b);
    } else if (!std::exchange(known[on.front()], 1)) {
      devices.push_back(on.front());
    }
  }
  for (const int d : devices) {
    for (const int b : in.topological()) {
      if (in.devices_of(b).size() == 1 && in.devices_of(b).front() == d) add(b);
    }
  }
  return items;
}

bool share(const Instance& in, int a, int b) {
  for (const int d : in.devices_of(a)) {
    for (const int e : in.devices_of(b)) {
      if (d == e) return true;
    }
  }
  return false;
}

/// Step after step, for items in a given order.
class Planner {
 public:
  Planner(const Instance& in, const SweepTrees& trees, const SweepRing& ring, Nanoseconds unit, int unroll)
      : in_(in),
        trees_(trees),
        ring_(ring),
        unit_(unit),
        unroll_(unroll),
        order_(order_of_items(in, unroll)),
        place_(order_.size()),
        last_on_(in.devices(), -1),
        last_use_(order_.size(), -1) {}

  std::vector<SweepStep> run() {
    find_last_uses();
    for (std::size_t i = 0; i < order_.size(); ++i) add_step(static_cast<int>(i));
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const auto end = std::upper_bound(ends_.begin(), ends_.end(), i + 1);
      const auto left = static_cast<std::size_t>(ends_.end() - end);
      const std::size_t far = std::min<std::size_t>(left, unroll_ > 1 ? kAhead : 0);
      steps_[i].ahead = far == 0 ? i + 1 : *(end + (far - 1));
    }
    return std::move(steps_);
  }

 private:
  int block(int x) const { return x % in_.blocks(); }
  SweepPhase time_of(int x) const { return static_cast<SweepPhase>(in_.time(block(x)) / unit_); }

  /// Of every item the last step that its device or a link needs it in.
  void find_last_uses() {
    const int items = static_cast<int>(order_.size());
    for (int i = 0; i < items; ++i) {
      place_[order_[i]] = i;
      for (const int d : in_.devices_of(block(order_[i]))) last_on_[d] = i;
    }
    for (int i = 0; i < items; ++i) {
      const int x = order_[i];
      for (const int d : in_.devices_of(block(x))) last_use_[i] = std::max(last_use_[i], last_on_[d]);
      for (const int l : trees_.at[block(x)]) {
        const SweepTrees::Link& link = trees_.links[l];
        const int other = x - block(x) + (link.from == block(x) ? link.to : link.from);
        last_use_[i] = std::max(last_use_[i], place_[other]);
      }
    }
  }

  void add_step(int i) {
    const int x = order_[i];
    SweepStep step;
    step.item = x;
    step.time = time_of(x);
    step.live = live_;
    if (block(x) == block(order_.front())) step.copy = x / in_.blocks();
    for (std::size_t j = 0; j < live_.size(); ++j) look_at(live_[j], static_cast<int>(j), step);
    std::vector<int> next;
    for (std::size_t j = 0; j < live_.size(); ++j) {
      if (last_use_[place_[live_[j]]] <= i) continue;
      step.kept.push_back(static_cast<int>(j));
      next.push_back(live_[j]);
    }
    if (last_use_[i] > i) {
      step.kept.push_back(-1);
      next.push_back(x);
    }
    for (const int d : in_.devices_of(block(x))) {
      if (last_on_[d] == i) step.done.push_back(d);
    }
    if (!step.done.empty()) ends_.push_back(static_cast<std::size_t>(i) + 1);
    live_ = std::move(next);
    steps_.push_back(std::move(step));
  }

  /// What the step has to do with item y, the j-th live item.
  void look_at(int y, int j, SweepStep& step) const {
    const int x = step.item;
    if (share(in_, block(x), block(y)))
      step.shared.push_back({j, time_of(y), ring_.blocked(step.time, time_of(y))});
    if (y - block(y) != x - block(x)) return;
    for (const int l : trees_.at[block(x)]) {
      const SweepTrees::Link& link = trees_.links[l];
      if (link.from != block(y) && link.to != block(y)) continue;
      step.neighbours.push_back({j, ring_.ring(link.weight / unit_), l, link.from == block(y)});
    }
  }

  const Instance& in_;
  const SweepTrees& trees_;
  const SweepRing& ring_;
  const Nanoseconds unit_;
  const int unroll_;
  const std::vector<int> order_;
  std::vector<int> place_, last_on_, last_use_;  ///< by item, device, place
  std::vector<int> live_;
  std::vector<std::size_t> ends_;  ///< after which steps devices are complete
  std::vector<SweepStep> steps_;
};

}  // namespace

SweepTrees::SweepTrees(const Instance& in, const Compression& compression) : at(in.blocks()) {
  for (const Compression::Bridge& b : compression.bridges) {
    for (const int end : {b.from, b.to}) at[end].push_back(static_cast<int>(links.size()));
    links.push_back({b.from, b.to, b.weight});
    grid = std::gcd(grid, b.weight);
  }
  held_by.resize(links.size());
  Bytes divisor = 0, most = 0;
  for (int b = 0; b < in.blocks(); ++b) {
    grid = std::gcd(grid, in.time(b));
    divisor = std::gcd(divisor, in.memory(b));
    most = std::max(most, std::abs(in.memory(b)));
  }
  unit = std::max({Bytes{1}, divisor, most / kMostUnits});
  std::vector<std::vector<std::size_t>> taken(in.blocks());
  for (std::size_t m = 0; m < compression.matches.size(); ++m)
    taken[compression.matches[m].take].push_back(m);
  std::vector<int> through(in.blocks());  // link from which the walk came
  std::vector<int> open;
  for (int a = 0; a < in.blocks(); ++a) {
    if (taken[a].empty()) continue;
    std::fill(through.begin(), through.end(), -1);
    open = {a};
    while (!open.empty()) {
      const int b = open.back();
      open.pop_back();
      for (const int l : at[b]) {
        if (links[l].from != b) continue;
        through[links[l].to] = l;
        open.push_back(links[l].to);
      }
    }
    for (const std::size_t m : taken[a]) {
      const Compression::Match& match = compression.matches[m];
      if (!in.limited(match.device)) continue;
      for (int c = match.give; c != a; c = links[through[c]].from)
        held_by[through[c]].push_back({match.device, scaled(match.bytes)});
    }
  }
}

SweepSteps::SweepSteps(const Instance& in, const SweepTrees& trees, int unroll, Nanoseconds period)
    : unit(std::gcd(period, trees.grid)), ring(period / unit) {
  if (ring.period <= kMostPhases) steps = Planner(in, trees, ring, unit, unroll).run();
}

}  // namespace ostinato
