// SPDX-License-Identifier: Apache-2.0
#include "search/graph/sequence.h"

#include <algorithm>
#include <utility>

namespace ostinato::graph {

GraphSequence::GraphSequence(const GraphCosts& costs, Assignment assignment, std::vector<int> order)
    : costs_(costs),
      graph_(costs.graph()),
      devices_(costs.device_count()),
      links_(costs),
      classes_(links_.class_times().size()),
      device_(std::move(assignment)),
      duration_(graph_.size()),
      order_(std::move(order)),
      position_(graph_.size()),
      previous_(graph_.size(), -1),
      next_(graph_.size(), -1),
      lists_(devices_),
      used_(devices_, 0),
      head_(graph_.size(), 0),
      tail_(graph_.size(), 0),
      scope_{0, graph_.size() - 1},
      window_head_(graph_.size(), 0),
      seen_(graph_.size(), 0),
      device_seen_(devices_, 0),
      available_(devices_, 0),
      dirty_heads_(graph_.size(), 0),
      dirty_tails_(graph_.size(), 0) {
  tabulate();
  for (int p = 0; p < graph_.size(); ++p) {
    const int v = order_[p], d = device_[v];
    position_[v] = p;
    duration_[v] = execution(v, d);
    if (!lists_[d].empty()) {
      previous_[v] = lists_[d].back();
      next_[previous_[v]] = v;
    }
    lists_[d].push_back(v);
    used_[d] += graph_.memory[v];
    head_[v] = head_of(v);
  }
  for (int p = graph_.size() - 1; p >= 0; --p) tail_[order_[p]] = tail_of(order_[p]);
  update_makespan();
}

// Durations are looked up, not divided: that is most of the time of a look.
void GraphSequence::tabulate() {
  for (int v = 0; v < graph_.size(); ++v) {
    for (int device = 0; device < devices_; ++device) execution_.push_back(costs_.execution(v, device));
    links_.tensor_of(v);
    transfer_.insert(transfer_.end(), links_.class_times().begin(), links_.class_times().end());
  }
}

int GraphSequence::earliest_position(int v) const {
  int position = 0;
  for (const int u : graph_.predecessors[v]) position = std::max(position, position_[u] + 1);
  return position;
}

int GraphSequence::latest_position(int v) const {
  int position = graph_.size() - 1;
  for (const int w : graph_.successors[v]) position = std::min(position, position_[w] - 1);
  return position;
}

std::int64_t GraphSequence::over(const GraphChange& change, int device) const {
  std::int64_t used = used_[device];
  for (const GraphMove& m : change.moves) {
    if (m.device == device) used += graph_.memory[m.vertex];
    if (device_[m.vertex] == device) used -= graph_.memory[m.vertex];
  }
  return std::max<std::int64_t>(0, used - costs_.devices().devices[device].memory);
}

Ticks GraphSequence::head_of(int v) const {
  const int d = device_[v], before = previous_[v];
  Ticks head = before < 0 ? 0 : head_[before] + duration_[before];
  for (const int u : graph_.predecessors[v])
    head = std::max(head, head_[u] + duration_[u] + transfer(u, device_[u], d));
  return head;
}

Ticks GraphSequence::tail_of(int v) const {
  const int d = device_[v], after = next_[v];
  Ticks tail = after < 0 ? 0 : tail_[after];
  for (const int w : graph_.successors[v]) tail = std::max(tail, transfer(v, d, device_[w]) + tail_[w]);
  return tail + duration_[v];
}

void GraphSequence::update_makespan() {
  makespan_ = 0;
  for (int p = scope_.first; p <= scope_.last; ++p)
    makespan_ = std::max(makespan_, head_[order_[p]] + tail_[order_[p]]);
}

void GraphSequence::set_scope(int first, int last) {
  update_heads(scope_.last + 1, graph_.size() - 1, -1);
  update_tails(scope_.first - 1, 0, graph_.size());
  scope_ = {first, last};
  update_makespan();
}

bool GraphSequence::in_scope(const GraphChange& change) const {
  const Window w = window(change);
  return w.first >= scope_.first && w.last <= scope_.last;
}

GraphSequence::Window GraphSequence::window(const GraphChange& change) const {
  Window w{position_[change.moves.front().vertex], position_[change.moves.back().vertex]};
  if (change.position >= 0) {
    w.first = std::min(w.first, change.position);
    w.last = std::max(w.last, change.position);
  }
  return w;
}

/// The window's vertices in the order that the change gives them.
void GraphSequence::lay_out(const GraphChange& change, Window w) {
  window_order_.assign(order_.begin() + w.first, order_.begin() + w.last + 1);
  if (change.position < 0) return;
  const auto from = window_order_.begin() + (position_[change.moves.front().vertex] - w.first);
  const auto to = window_order_.begin() + (change.position - w.first);
  if (from < to)
    std::rotate(from, from + 1, to + 1);
  else
    std::rotate(to, from, from + 1);
}

/// First vertex of a device's list at that position or later.
std::vector<int>::iterator GraphSequence::place(int device, int position) {
  return std::lower_bound(lists_[device].begin(), lists_[device].end(), position,
                          [&](int v, int p) { return position_[v] < p; });
}

/// When the device is free for its next vertex of this look; its window begins at position `before`.
Ticks GraphSequence::available(int device, int before) {
  if (device_seen_[device] == look_) return available_[device];
  device_seen_[device] = look_;
  touched_.push_back(device);
  const auto at = place(device, before);
  if (at == lists_[device].begin()) return available_[device] = 0;
  const int v = *(at - 1);
  return available_[device] = head_[v] + duration_[v];
}

Ticks GraphSequence::pass_window(Window w, Ticks limit) {
  Ticks longest = 0;
  for (const int v : window_order_) {
    ++work_;
    const int d = device_[v];
    Ticks head = available(d, w.first);
    for (const int u : graph_.predecessors[v]) {
      const Ticks start = seen_[u] == look_ ? window_head_[u] : head_[u];
      head = std::max(head, start + duration_[u] + transfer(u, device_[u], d));
    }
    seen_[v] = look_;
    window_head_[v] = head;
    const Ticks end = available_[d] = head + duration_[v];
    longest = std::max(longest, end);
    for (const int s : graph_.successors[v])
      if (position_[s] > w.last) longest = std::max(longest, end + transfer(v, d, device_[s]) + tail_[s]);
    if (longest > limit) return longest;
  }
  for (const int d : touched_) {
    const auto after = place(d, w.last + 1);
    if (after != lists_[d].end()) longest = std::max(longest, available_[d] + tail_[*after]);
  }
  return longest;
}

Ticks GraphSequence::longest_path(const GraphChange& change, Ticks limit) {
  const Window w = window(change);
  lay_out(change, w);
  ++look_;
  touched_.clear();
  undo_.clear();
  for (const auto& [v, device] : change.moves) {
    undo_.push_back({v, device_[v]});
    put(v, device);
  }
  const Ticks longest = pass_window(w, limit);
  for (const auto& [v, device] : undo_) put(v, device);
  return longest;
}

void GraphSequence::unlink(int v) {
  const int d = device_[v];
  lists_[d].erase(place(d, position_[v]));
  used_[d] -= graph_.memory[v];
  if (previous_[v] >= 0) next_[previous_[v]] = next_[v];
  if (next_[v] >= 0) previous_[next_[v]] = previous_[v];
  lost_next_.push_back(previous_[v]);
  lost_previous_.push_back(next_[v]);
}

void GraphSequence::link(int v) {
  const int d = device_[v];
  const auto at = lists_[d].insert(place(d, position_[v]), v);
  used_[d] += graph_.memory[v];
  previous_[v] = at == lists_[d].begin() ? -1 : *(at - 1);
  next_[v] = at + 1 == lists_[d].end() ? -1 : *(at + 1);
  if (previous_[v] >= 0) next_[previous_[v]] = v;
  if (next_[v] >= 0) previous_[next_[v]] = v;
}

void GraphSequence::apply(const GraphChange& change) {
  const Window w = window(change);
  lay_out(change, w);
  for (const GraphMove& m : change.moves) unlink(m.vertex);
  for (const GraphMove& m : change.moves) put(m.vertex, m.device);
  for (int p = w.first; p <= w.last; ++p) {
    order_[p] = window_order_[p - w.first];
    position_[order_[p]] = p;
  }
  for (const GraphMove& m : change.moves) link(m.vertex);
  for (const int v : lost_previous_) mark(dirty_heads_, v);
  for (const int v : lost_next_) mark(dirty_tails_, v);
  lost_previous_.clear();
  lost_next_.clear();
  std::fill(dirty_heads_.begin() + w.first, dirty_heads_.begin() + w.last + 1, 1);
  std::fill(dirty_tails_.begin() + w.first, dirty_tails_.begin() + w.last + 1, 1);
  update_heads(w.first, scope_.last, w.last);
  update_tails(w.last, scope_.first, w.first);
  update_makespan();
}

// Heads of what was marked up to `to`, and of what hangs on a head that has changed; up to `last_changed`
// all count as changed.
void GraphSequence::update_heads(int from, int to, int last_changed) {
  const auto end = dirty_heads_.begin() + to + 1;
  for (auto p = dirty_heads_.begin() + std::min(from, to + 1); (p = std::find(p, end, 1)) != end; *p = 0) {
    const int position = static_cast<int>(p - dirty_heads_.begin()), v = order_[position];
    const Ticks head = head_of(v);
    ++work_;
    if (head == std::exchange(head_[v], head) && position > last_changed) continue;
    mark(dirty_heads_, next_[v]);
    for (const int s : graph_.successors[v]) mark(dirty_heads_, s);
  }
}

// Tails likewise, towards the front.
void GraphSequence::update_tails(int from, int to, int first_changed) {
  const auto end = dirty_tails_.rend() - to;
  for (auto p = dirty_tails_.rend() - std::max(from + 1, to); (p = std::find(p, end, 1)) != end; *p = 0) {
    const int position = static_cast<int>(dirty_tails_.rend() - p) - 1, v = order_[position];
    const Ticks tail = tail_of(v);
    ++work_;
    if (tail == std::exchange(tail_[v], tail) && position < first_changed) continue;
    mark(dirty_tails_, previous_[v]);
    for (const int u : graph_.predecessors[v]) mark(dirty_tails_, u);
  }
}

std::vector<int> GraphSequence::critical_path() const {
  std::vector<int> path;
  int v = -1;
  for (int p = scope_.last; v < 0 && p >= scope_.first; --p)
    if (head_[order_[p]] + tail_[order_[p]] == makespan_) v = order_[p];
  while (v >= 0 && position_[v] >= scope_.first) {
    path.push_back(v);
    int cause = -1;
    if (previous_[v] >= 0 && head_[previous_[v]] + duration_[previous_[v]] == head_[v]) cause = previous_[v];
    for (const int u : graph_.predecessors[v])
      if (head_[u] + duration_[u] + transfer(u, device_[u], device_[v]) == head_[v]) cause = u;
    v = head_[v] == 0 ? -1 : cause;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace ostinato::graph
