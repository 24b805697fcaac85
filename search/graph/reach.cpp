// SPDX-License-Identifier: Apache-2.0
#include "search/graph/reach.h"

#include <algorithm>
#include <utility>

namespace ostinato::graph {

GraphTimes::GraphTimes(const GraphCosts& c)
    : costs(c), graph(c.graph()), device_count(c.device_count()), domains(graph.groups.rows()) {
  for (int v = 0; v < graph.size(); ++v)
    for (int d = 0; d < device_count; ++d) durations.push_back(costs.execution(v, d));
  for (int g = 0; g < graph.groups.rows(); ++g)
    for (int d = 0; d < device_count; ++d)
      if (costs.allowed(g, d)) domains[g].push_back(d);
}

GraphReach::GraphReach(const GraphTimes& times, From from, bool cones)
    : times_(times),
      graph_(times.graph),
      devices_(times.device_count),
      forwards_(from == From::start),
      cones_(cones),
      inputs_(forwards_ ? graph_.predecessors : graph_.successors),
      outputs_(forwards_ ? graph_.successors : graph_.predecessors),
      links_(times.costs),
      rank_(graph_.size()),
      release_(times.durations.size(), kGraphNever),
      remote_(inputs_.values().size() * devices_, 0),
      ends_(release_.size(), kGraphNever),
      soonest_(release_.size(), 0),
      row_(devices_),
      cone_({inputs_, graph_.group, rank_, remote_, release_, times.durations, devices_}, graph_.size()) {
  for (int p = 0; p < graph_.size(); ++p) rank_[graph_.order[p]] = forwards_ ? p : graph_.size() - p;
  for (int v = 0; v < graph_.size(); ++v)
    for (const int d : times_.homes(v)) release_[at(v, d)] = 0;
}

void GraphReach::pass(const std::function<bool()>& stop, const std::function<void(int)>& then) {
  for (int p = 0; p < graph_.size() && !stop(); ++p) {
    const int v = graph_.order[forwards_ ? p : graph_.size() - 1 - p];
    visit(v);
    if (then) then(v);
  }
}

void GraphReach::visit(int v) {
  if (!forwards_) receive(v);
  for (const int d : times_.homes(v)) {
    Ticks& release = release_[at(v, d)];
    release = std::max(release, earliest(v, d));
    ends_[at(v, d)] = release + times_.duration(v, d);
  }
  sort_ends(v);
  if (forwards_) send(v);
}

void GraphReach::raise(int v, const Ticks* row) {
  for (const int d : times_.homes(v)) {
    release_[at(v, d)] = row[d];
    ends_[at(v, d)] = row[d] + times_.duration(v, d);
  }
  sort_ends(v);
  if (forwards_) send(v);
}

std::size_t GraphReach::entry(int v, int input) const {
  const auto inputs = inputs_[v];
  return inputs_.begin(v) + (std::lower_bound(inputs.begin(), inputs.end(), input) - inputs.begin());
}

Ticks GraphReach::earliest(int v, int d) {
  join_.clear();
  const auto inputs = inputs_[v];
  for (std::size_t i = 0; i < inputs.size(); ++i)
    join_.add({remote_[(inputs_.begin(v) + i) * devices_ + d], release_[at(inputs[i], d)],
               times_.duration(inputs[i], d)});
  const Ticks joined = join_.earliest();
  // What one input alone forces here, it was behind already.
  const bool several = inputs.size() > 1 || graph_.groups[graph_.group[v]].size() > 1;
  return cones_ && several && joined < kGraphNever ? cone_.earliest(v, d, joined) : joined;
}

void GraphReach::sort_ends(int v) {
  const auto begin = soonest_.begin() + static_cast<std::ptrdiff_t>(at(v, 0));
  const auto end = std::copy(times_.homes(v).begin(), times_.homes(v).end(), begin);
  std::sort(begin, end,
            [&](int a, int b) { return std::pair(ends_[at(v, a)], a) < std::pair(ends_[at(v, b)], b); });
}

/// Forwards: v's tensor over a link at every device.
void GraphReach::send(int v) {
  links_.tensor_of(v);
  for (int to = 0; to < devices_; ++to)
    row_[to] = links_.least(to, GraphLinks::Way::to, soonest(v), &ends_[at(v, 0)]);
  for (const int w : outputs_[v])
    std::copy(row_.begin(), row_.end(),
              remote_.begin() + static_cast<std::ptrdiff_t>(entry(w, v)) * devices_);
}

/// Backwards: v's own tensor over a link to each of what follows it.
void GraphReach::receive(int v) {
  links_.tensor_of(v);
  std::size_t entry = inputs_.begin(v);
  for (const int w : inputs_[v]) {
    for (const int d : times_.homes(v))
      remote_[entry * devices_ + d] = links_.least(d, GraphLinks::Way::from, soonest(w), &ends_[at(w, 0)]);
    ++entry;
  }
}

}  // namespace ostinato::graph
