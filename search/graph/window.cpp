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
  for (const From from : {start, end}) {
    edges_[from].assign(count, {});
    beside_[from].assign(count, 0);
  }
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
      edges_[start][i].push_back({local_[u], sender});
      edges_[end][local_[u]].push_back({i, sender});
      beside_[start][i] |= Jobs{1} << local_[u];
      beside_[end][local_[u]] |= Jobs{1} << i;
    }
    for (const int e : times_.homes(v)) {
      first_.head[at(i, e)] = reach_(v, e);
      if (i + 1 < count) duration_[at(i, e)] = times_.duration(v, e);
    }
  }
  for (const int v : vertices) local_[v] = -1;
  find_paths();
}

/// The longest way from the end of each job to the last, every job as fast as it can be.
void GraphWindow::find_paths() {
  const int count = static_cast<int>(groups_.size());
  path_.assign(count, 0);
  for (int i = count - 1; i >= 0; --i) {
    Ticks fastest = kGraphNever;
    for (const int e : times_.domains[groups_[i]]) fastest = std::min(fastest, duration_[at(i, e)]);
    for (const Edge& edge : edges_[start][i]) path_[edge.job] = std::max(path_[edge.job], path_[i] + fastest);
  }
}

void GraphWindow::set_device(int device, Ticks latest) {
  const int count = static_cast<int>(groups_.size());
  first_.tail.clear();
  first_.devices.assign(count, 0);
  for (int i = 0; i < count; ++i) {
    first_.tail.insert(first_.tail.end(), device_count_, path_[i]);
    for (const int e : times_.domains[groups_[i]]) first_.devices[i] |= only(e);
  }
  // With all devices the heads are behind what is before them already.
  first_.stale[start] = 0;
  first_.stale[end] = (Jobs{1} << count) - 1;
  for (int i = 0; i < count; ++i)
    if (groups_[i] == groups_.back()) keep(first_, i, only(device));
  sweep(first_, latest, end);
}

Ticks GraphWindow::join(const State& s, int job, int device, From from) {
  const std::vector<Ticks>& release = from == start ? s.head : s.tail;
  const bool arrives = (from == start) == reach_.forwards();
  const int* rates = arrives ? links_.classes_to(device) : links_.classes_from(device);
  join_.clear();
  for (const Edge& edge : edges_[from][job]) {
    const Ticks* hops = &hop_times_[static_cast<std::size_t>(edge.sender) * links_.class_times().size()];
    GraphJoin::Input input{kGraphNever, kGraphNever, 0};
    each(s.devices[edge.job], [&](int e) {
      const std::size_t i = at(edge.job, e);
      if (e == device) {
        input.release = release[i];
        input.duration = duration_[i];
      } else {
        input.remote = std::min(input.remote, release[i] + duration_[i] + hops[rates[e]]);
      }
    });
    join_.add(input);
  }
  return join_.earliest();
}

void GraphWindow::keep(State& s, int job, Devices devices) const {
  s.devices[job] = devices;
  rose(s, job, start);
  rose(s, job, end);
}

GraphWindow::Outcome GraphWindow::drop_late(State& s, int job, Ticks time) const {
  Devices left = s.devices[job];
  each(left, [&](int e) {
    if (through(s, job, e) > time) left &= ~only(e);
  });
  if (left == s.devices[job]) return Outcome::same;
  keep(s, job, left);
  return left == 0 ? Outcome::refuted : Outcome::narrower;
}

/// Every job behind those before it, or before those behind it.
GraphWindow::Outcome GraphWindow::sweep(State& s, Ticks time, From from) {
  Outcome outcome = Outcome::same;
  const int count = static_cast<int>(groups_.size());
  std::vector<Ticks>& release = from == start ? s.head : s.tail;
  for (int k = 0; k < count; ++k) {
    const int i = from == start ? k : count - 1 - k;
    outcome = std::max(outcome, drop_late(s, i, time));
    if (outcome == Outcome::refuted) return outcome;
    if ((s.stale[from] >> i & 1) == 0) continue;
    s.stale[from] &= ~(Jobs{1} << i);
    each(s.devices[i], [&](int e) {
      const Ticks joined = join(s, i, e, from);
      if (joined <= release[at(i, e)]) return;
      release[at(i, e)] = joined;
      rose(s, i, from);
    });
    outcome = std::max(outcome, drop_late(s, i, time));
    if (outcome == Outcome::refuted) return outcome;
  }
  return outcome;
}

GraphWindow::Outcome GraphWindow::share_groups(State& s) const {
  Outcome outcome = Outcome::same;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (groups_[i] != groups_[j] || s.devices[i] == s.devices[j]) continue;
      const Devices both = s.devices[i] & s.devices[j];
      if (both == 0) return Outcome::refuted;
      keep(s, static_cast<int>(i), both);
      keep(s, static_cast<int>(j), both);
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
      if (head == s.head[x] && tail == s.tail[y]) continue;
      s.head[x] = head;
      s.tail[y] = tail;
      rose(s, a, start);
      rose(s, b, end);
      outcome = Outcome::narrower;
      if (through(s, a, device) > time || through(s, b, device) > time) return Outcome::refuted;
    }
  }
  return outcome;
}

/// A job that could be there, but not with the jobs that must be, is not.
GraphWindow::Outcome GraphWindow::add_to(State& s, int device, Ticks time) {
  if (!in_turn(s, device, time)) return Outcome::refuted;
  Outcome outcome = Outcome::same;
  for (std::size_t i = 0; i + 1 < groups_.size(); ++i) {
    if ((s.devices[i] & only(device)) == 0 || s.devices[i] == only(device)) continue;
    fixed_.push_back(static_cast<int>(i));
    if (!in_turn(s, device, time)) {
      keep(s, static_cast<int>(i), s.devices[i] & ~only(device));
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
    for (const From from : {start, end})
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
    each(s.devices[i], [&](int e) { shortest = std::min(shortest, through(s, static_cast<int>(i), e)); });
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
    keep(next, job, left & -left);
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
