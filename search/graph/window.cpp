// SPDX-License-Identifier: Apache-2.0
#include "search/graph/window.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace ostinato::graph {
namespace {

/// Calls f with each device of a set, ascending; the set may lose devices meanwhile.
template <class F>
void each(std::uint64_t devices, F f) {
  for (; devices != 0; devices &= devices - 1) f(std::countr_zero(devices));
}

}  // namespace

GraphWindow::GraphWindow(const GraphTimes& times, const GraphReach& reach)
    : times_(times),
      reach_(reach),
      device_count_(times.device_count),
      links_(times.costs),
      local_(times.graph.size(), -1) {}

void GraphWindow::set_jobs(const std::vector<int>& vertices) {
  const int count = static_cast<int>(vertices.size());
  for (int i = 0; i < count; ++i) local_[vertices[i]] = i;
  groups_.clear();
  hop_times_.clear();
  before_.assign(count, {});
  after_.assign(count, {});
  duration_.assign(static_cast<std::size_t>(count) * device_count_, 0);
  first_.head.assign(duration_.size(), kGraphNever);
  for (int i = 0; i < count; ++i) {
    const int v = vertices[i];
    groups_.push_back(times_.graph.group[v]);
    links_.tensor_of(v);
    hop_times_.insert(hop_times_.end(), links_.class_times().begin(), links_.class_times().end());
    for (const int u : reach_.inputs()[v]) {
      if (local_[u] < 0) continue;
      const int sender = reach_.forwards() ? local_[u] : i;
      before_[i].push_back({local_[u], sender});
      after_[local_[u]].push_back({i, sender});
    }
    for (const int e : times_.homes(v)) {
      first_.head[at(i, e)] = reach_(v, e);
      if (i + 1 < count) duration_[at(i, e)] = times_.duration(v, e);
    }
  }
  for (const int v : vertices) local_[v] = -1;
}

void GraphWindow::set_device(int device, Ticks latest) {
  const int count = static_cast<int>(groups_.size());
  first_.tail.assign(duration_.size(), 0);
  first_.devices.assign(count, 0);
  for (int i = 0; i < count; ++i) {
    if (groups_[i] == groups_.back())
      first_.devices[i] = only(device);
    else
      for (const int e : times_.domains[groups_[i]]) first_.devices[i] |= only(e);
  }
  sweep(first_, latest, From::end);
}

/// Of the edge's tensor, between the device of a job and that of the job at the edge's other end.
Ticks GraphWindow::hop(const Edge& edge, From from, int device, int other) const {
  const bool arrives = (from == From::start) == reach_.forwards();
  const int rate = arrives ? links_.rate_class(other, device) : links_.rate_class(device, other);
  return hop_times_[static_cast<std::size_t>(edge.sender) * links_.class_times().size() + rate];
}

Ticks GraphWindow::join(const State& s, int job, int device, From from) {
  const std::vector<Ticks>& release = from == From::start ? s.head : s.tail;
  join_.clear();
  for (const Edge& edge : from == From::start ? before_[job] : after_[job]) {
    GraphJoin::Input input{kGraphNever, kGraphNever, 0};
    each(s.devices[edge.job], [&](int e) {
      const std::size_t i = at(edge.job, e);
      if (e == device) {
        input.release = release[i];
        input.duration = duration_[i];
      } else {
        input.remote = std::min(input.remote, release[i] + duration_[i] + hop(edge, from, device, e));
      }
    });
    join_.add(input);
  }
  return join_.earliest();
}

GraphWindow::Outcome GraphWindow::drop_late(State& s, int job, Ticks time) const {
  const Devices before = s.devices[job];
  each(before, [&](int e) {
    if (through(s, job, e) > time) s.devices[job] &= ~only(e);
  });
  if (s.devices[job] == 0) return Outcome::refuted;
  return s.devices[job] == before ? Outcome::same : Outcome::narrower;
}

/// Every job behind those before it, or before those behind it.
GraphWindow::Outcome GraphWindow::sweep(State& s, Ticks time, From from) {
  Outcome outcome = Outcome::same;
  const int count = static_cast<int>(groups_.size());
  for (int k = 0; k < count; ++k) {
    const int i = from == From::start ? k : count - 1 - k;
    std::vector<Ticks>& release = from == From::start ? s.head : s.tail;
    Outcome one = drop_late(s, i, time);
    if (one == Outcome::refuted) return one;
    outcome = std::max(outcome, one);
    each(s.devices[i], [&](int e) { release[at(i, e)] = std::max(release[at(i, e)], join(s, i, e, from)); });
    one = drop_late(s, i, time);
    if (one == Outcome::refuted) return one;
    outcome = std::max(outcome, one);
  }
  return outcome;
}

GraphWindow::Outcome GraphWindow::share_groups(State& s) const {
  Outcome outcome = Outcome::same;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (groups_[i] != groups_[j] || s.devices[i] == s.devices[j]) continue;
      s.devices[i] = s.devices[j] = s.devices[i] & s.devices[j];
      if (s.devices[i] == 0) return Outcome::refuted;
      outcome = Outcome::narrower;
    }
  }
  return outcome;
}

/// Jobs that have one device left run there one after the other; the last is behind them all anyway.
GraphWindow::Outcome GraphWindow::share_devices(State& s, Ticks time) {
  Devices used = 0;
  for (std::size_t i = 0; i + 1 < groups_.size(); ++i)
    if (std::has_single_bit(s.devices[i])) used |= s.devices[i];
  Outcome outcome = Outcome::same;
  each(used, [&](int e) {
    if (outcome == Outcome::refuted) return;
    fixed_.clear();
    for (std::size_t i = 0; i + 1 < groups_.size(); ++i)
      if (s.devices[i] == only(e)) fixed_.push_back(static_cast<int>(i));
    outcome = std::max(outcome, order_pairs(s, e, time));
    if (outcome != Outcome::refuted) outcome = std::max(outcome, add_to(s, e, time));
  });
  return outcome;
}

/// Of two jobs, where one cannot be before the other, it is behind it.
GraphWindow::Outcome GraphWindow::order_pairs(State& s, int device, Ticks time) const {
  Outcome outcome = Outcome::same;
  for (const int a : fixed_) {
    for (const int b : fixed_) {
      const std::size_t x = at(a, device), y = at(b, device);
      if (a == b || s.head[x] + duration_[x] + duration_[y] + s.tail[y] <= time) continue;
      const Ticks head = std::max(s.head[x], s.head[y] + duration_[y]);
      const Ticks tail = std::max(s.tail[y], s.tail[x] + duration_[x]);
      if (head != std::exchange(s.head[x], head) || tail != std::exchange(s.tail[y], tail))
        outcome = Outcome::narrower;
      if (through(s, a, device) > time || through(s, b, device) > time) return Outcome::refuted;
    }
  }
  return outcome;
}

/// A job that could be there too, but not with those that must be, is not.
GraphWindow::Outcome GraphWindow::add_to(State& s, int device, Ticks time) {
  if (!in_turn(s, device, time)) return Outcome::refuted;
  Outcome outcome = Outcome::same;
  for (std::size_t i = 0; i + 1 < groups_.size(); ++i) {
    if ((s.devices[i] & only(device)) == 0 || s.devices[i] == only(device)) continue;
    fixed_.push_back(static_cast<int>(i));
    if (!in_turn(s, device, time)) {
      s.devices[i] &= ~only(device);
      outcome = Outcome::narrower;
    }
    fixed_.pop_back();
  }
  return outcome;
}

/// No set of the fixed jobs takes too long between its first head and its last tail (Carlier, EJOR 11, 1982).
bool GraphWindow::in_turn(const State& s, int device, Ticks time) {
  by_tail_ = fixed_;
  std::sort(by_tail_.begin(), by_tail_.end(),
            [&](int a, int b) { return s.tail[at(a, device)] > s.tail[at(b, device)]; });
  for (const int first : fixed_) {
    const Ticks from = s.head[at(first, device)];
    Ticks sum = 0;
    for (const int job : by_tail_) {
      const std::size_t i = at(job, device);
      if (s.head[i] < from) continue;
      sum += duration_[i];
      if (from + sum + s.tail[i] > time) return false;
    }
  }
  return true;
}

/// False: some job has no device left.
bool GraphWindow::narrow(State& s, Ticks time) {
  for (Outcome all = Outcome::narrower; all == Outcome::narrower;) {
    all = share_groups(s);
    for (const From from : {From::end, From::start})
      if (all != Outcome::refuted) all = std::max(all, sweep(s, time, from));
    if (all != Outcome::refuted) all = std::max(all, share_devices(s, time));
    if (all == Outcome::refuted) return false;
  }
  return true;
}

/// The job to make assumptions about: few devices, then little slack. -1: all have one.
int GraphWindow::widest(const State& s) const {
  int chosen = -1;
  std::pair<int, Ticks> least{};
  for (std::size_t i = 0; i + 1 < groups_.size(); ++i) {
    const int count = std::popcount(s.devices[i]);
    if (count == 1) continue;
    Ticks shortest = kGraphNever;
    each(s.devices[i],
         [&](int e) { shortest = std::min(shortest, through(s, static_cast<int>(i), e)); });
    const std::pair<int, Ticks> key{count, -shortest};
    if (chosen < 0 || key < least) chosen = static_cast<int>(i), least = key;
  }
  return chosen;
}

bool GraphWindow::impossible(State& s, Ticks time) {
  if (!narrow(s, time)) return true;
  const int job = widest(s);
  if (job < 0) return false;
  for (Devices left = s.devices[job]; left != 0; left &= left - 1) {
    if (++assumptions_ > kMostAssumptions) return false;
    State next = s;
    next.devices[job] = left & -left;
    if (!impossible(next, time)) return false;
  }
  return true;
}

bool GraphWindow::refuted(Ticks time) {
  assumptions_ = 0;
  State s = first_;
  return impossible(s, time);
}

}  // namespace ostinato::graph
