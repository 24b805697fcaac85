// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/bounds.h"

#include <algorithm>
#include <utility>

#include "search/bounds/cut_out.h"
#include "search/bounds/one_machine.h"

namespace ostinato {
namespace {

/// Limits for large placements (docs/bounds.md, "Large placements"): beyond them less is tried, by a rule
/// that the checker knows too.
constexpr std::int64_t kMostOrigins = std::int64_t{1} << 26;
constexpr std::int64_t kMostCutWork = std::int64_t{1} << 26;

}  // namespace

Bounds::Bounds(const Instance& instance)
    : in_(instance), held_(match_all(instance)), spacings_(spacings(in_, held_)) {
  areas_.resize(in_.devices());
  for (int d = 0; d < in_.devices(); ++d) {
    if (held_[d] && in_.room(d) > 0) areas_[d] = area_of(in_, d, *held_[d]);
  }
  paths_.push_back(paths(in_.times(), std::vector<Nanoseconds>(in_.blocks(), 0), true));
  for (const std::vector<int>& cut : sets_to_cut(in_)) {
    if (static_cast<std::int64_t>(cut.size()) * in_.size() <= kMostCutWork) paths_.push_back(beside(cut));
  }
}

Bounds::Paths Bounds::paths(std::vector<Nanoseconds> time, std::vector<Nanoseconds> ends,
                            bool transfers) const {
  Paths p{std::move(time), ends, ends};
  const std::size_t blocks = in_.blocks();
  for (std::size_t i = 0; i < blocks; ++i) {
    const int b = in_.topological()[i];
    const int last = in_.topological()[blocks - 1 - i];
    for (const Edge& e : in_.inputs(b)) {
      if (p.before[e.block] < 0) continue;
      const Nanoseconds arrives = p.before[e.block] + p.time[e.block] + (transfers ? e.transfer : 0);
      p.before[b] = std::max(p.before[b], arrives);
    }
    for (const Edge& e : in_.followers(last)) {
      if (p.after[e.block] < 0) continue;
      const Nanoseconds follows = (transfers ? e.transfer : 0) + p.time[e.block] + p.after[e.block];
      p.after[last] = std::max(p.after[last], follows);
    }
  }
  return p;
}

Bounds::Paths Bounds::beside(const std::vector<int>& cut) const {
  std::vector<Nanoseconds> time(in_.blocks(), 0);
  Nanoseconds cut_out = 0;
  for (int b = 0; b < in_.blocks(); ++b)
    if (shares_with_all(in_, b, cut)) time[b] = in_.time(b);
  for (const int b : cut) cut_out += std::exchange(time[b], 0);
  Paths left = paths(std::move(time), std::vector<Nanoseconds>(in_.blocks(), 0), false);
  left.cut_out = cut_out;
  return left;
}

Nanoseconds Bounds::busiest(const Paths& p, int micro_batches) const {
  Nanoseconds bound = 0;
  std::vector<Task> work;
  for (int d = 0; d < in_.devices(); ++d) {
    work.clear();
    for (const int b : in_.blocks_on(d)) {
      if (p.before[b] >= 0 && p.after[b] >= 0)
        work.push_back({p.before[b], micro_batches * p.time[b], p.after[b]});
    }
    bound = std::max(bound, least_end(work));
  }
  return micro_batches * p.cut_out + bound;
}

Nanoseconds Bounds::period(int unroll) const {
  Nanoseconds bound = unroll * in_.heaviest_load();
  for (int d = 0; d < in_.devices(); ++d) {
    if (areas_[d]) bound = std::max(bound, window_of(*areas_[d], unroll, in_.room(d)));
  }
  for (const Spacing& s : spacings_) bound = std::max(bound, s.window(in_, unroll));
  return bound;
}

Nanoseconds Bounds::makespan(int micro_batches) const {
  Nanoseconds bound = 0;
  for (const Paths& p : paths_) bound = std::max(bound, busiest(p, micro_batches));
  for (int d = 0; d < in_.devices(); ++d) {
    if (!areas_[d]) continue;
    const Nanoseconds window = window_of(*areas_[d], micro_batches, in_.room(d));
    bound = std::max(bound, areas_[d]->head + window + areas_[d]->tail);
  }
  for (const Spacing& s : spacings_) bound = std::max(bound, s.makespan(in_, micro_batches));
  return bound;
}

Nanoseconds Bounds::span(int micro_batches) const {
  Nanoseconds bound = micro_batches * in_.heaviest_load();
  for (int d = 0; d < in_.devices(); ++d) {
    if (areas_[d]) bound = std::max(bound, window_of(*areas_[d], micro_batches, in_.room(d)));
    if (d > 0 && (d + 1) * in_.size() > kMostOrigins) continue;
    std::vector<Nanoseconds> ends(in_.blocks(), -1);
    for (const int b : in_.blocks_on(d)) ends[b] = 0;
    bound = std::max(bound, busiest(paths(in_.times(), std::move(ends), true), micro_batches));
  }
  return bound;
}

Nanoseconds Bounds::latency() const { return makespan(1); }

Nanoseconds Bounds::of(Objective objective, int micro_batches) const {
  switch (objective) {
    case Objective::makespan:
      return makespan(micro_batches);
    case Objective::span:
      return span(micro_batches);
    case Objective::latency:
      return latency();
  }
  return 0;
}

}  // namespace ostinato
