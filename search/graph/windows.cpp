// SPDX-License-Identifier: Apache-2.0
#include "search/graph/windows.h"

#include <algorithm>
#include <queue>
#include <tuple>

namespace ostinato::graph {
namespace {

/// Shares of the time that a window spans: the least rise that is looked for, the most, and how far behind
/// the best device another one may be and still be looked at.
constexpr Ticks kLeastRise = 512, kMostRise = 8, kBehind = 8;

}  // namespace

GraphWindows::GraphWindows(const GraphTimes& times, GraphReach& reach, const GraphReach& other,
                           const std::vector<char>& matters)
    : times_(times),
      reach_(reach),
      other_(other),
      matters_(matters),
      window_(times, reach),
      soonest_(times.graph.size(), kGraphNever),
      seen_(times.graph.size(), 0) {}

/// Those before v that can be reached latest.
void GraphWindows::collect(int v) {
  using Entry = std::tuple<Ticks, int, int>;
  std::priority_queue<Entry> open;
  std::vector<int> met = {v};
  jobs_.clear();
  open.emplace(kGraphNever, reach_.rank(v), v);
  while (!open.empty() && static_cast<int>(jobs_.size()) < GraphWindow::kMostJobs) {
    const int next = std::get<2>(open.top());
    open.pop();
    jobs_.push_back(next);
    for (const int u : reach_.inputs()[next]) {
      if (std::exchange(seen_[u], 1)) continue;
      met.push_back(u);
      open.emplace(soonest_[u], reach_.rank(u), u);
    }
  }
  for (const int u : met) seen_[u] = 0;
  std::sort(jobs_.begin(), jobs_.end(), [&](int a, int b) { return reach_.rank(a) < reach_.rank(b); });
}

/// The least start that is not refuted, or nearly.
Ticks GraphWindows::raised(Ticks from, Ticks span) {
  const Ticks least = std::max<Ticks>(1, span / kLeastRise);
  Ticks high = from + std::max<Ticks>(1, span / kMostRise);  // not refuted, or the most
  Ticks step = 2 * least;
  while (step >= least && from < high) {
    const Ticks time = std::min(from + step, high) - 1;
    if (window_.refuted(time)) {
      from = time + 1;
      step *= 2;
    } else {
      high = time;
      step = std::min(step / 2, (high - from) / 2);
    }
  }
  return from;
}

void GraphWindows::look(int v) {
  const bool joins = reach_.inputs()[v].size() >= 2 && times_.device_count <= GraphWindow::kMostDevices;
  if (joins && matters_[v]) {
    collect(v);
    window_.set_jobs(jobs_);
    std::vector<std::pair<Ticks, int>> lengths;
    Ticks first = kGraphNever, start = kGraphNever;
    for (const int u : jobs_) first = std::min(first, u == v ? first : soonest_[u]);
    for (const int d : times_.homes(v)) {
      lengths.emplace_back(reach_(v, d) + times_.duration(v, d) + other_(v, d), d);
      start = std::min(start, reach_(v, d));
    }
    std::sort(lengths.begin(), lengths.end());
    const Ticks span = start - first;
    std::vector<Ticks> row(reach_.row(v), reach_.row(v) + times_.device_count);
    Ticks shortest = kGraphNever;
    for (const auto& [length, d] : lengths) {
      if (row[d] >= kGraphNever || length > shortest + span / kBehind) break;
      window_.set_device(d, row[d] + std::max<Ticks>(1, span / kMostRise));
      const Ticks rise = raised(row[d], span) - row[d];
      row[d] += rise;
      shortest = std::min(shortest, length + rise);
    }
    reach_.raise(v, row.data());
  }
  for (const int d : times_.homes(v)) soonest_[v] = std::min(soonest_[v], reach_(v, d));
}

}  // namespace ostinato::graph
