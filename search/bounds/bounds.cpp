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

/// Blocks and edges.
std::int64_t size_of(const Instance& in) {
  std::int64_t size = in.blocks();
  for (int b = 0; b < in.blocks(); ++b) size += static_cast<std::int64_t>(in.inputs(b).size());
  return size;
}

}  // namespace

Bounds::Bounds(const Instance& instance)
    : in_(instance), size_(size_of(instance)), held_(match_all(instance)) {
  areas_.resize(in_.devices());
  for (int d = 0; d < in_.devices(); ++d) {
    if (held_[d] && in_.room(d) > 0) areas_[d] = area_of(in_, d, *held_[d]);
  }
  for (const std::vector<int>& cut : sets_to_cut(in_)) {
    if (static_cast<std::int64_t>(cut.size()) * size_ <= kMostCutWork) beside_.push_back(beside(cut));
  }
}

Bounds::Beside Bounds::beside(const std::vector<int>& cut) const {
  const std::size_t blocks = in_.blocks();
  Beside left;
  left.time.resize(blocks);
  left.head = left.tail = left.time;
  for (int b = 0; b < in_.blocks(); ++b)
    if (shares_with_all(in_, b, cut)) left.time[b] = in_.time(b);
  for (const int b : cut) left.cut_out += std::exchange(left.time[b], 0);
  for (std::size_t i = 0; i < blocks; ++i) {
    const int b = in_.topological()[i];
    const int last = in_.topological()[blocks - 1 - i];
    for (const Edge& e : in_.inputs(b))
      left.head[b] = std::max(left.head[b], left.head[e.block] + left.time[e.block]);
    for (const Edge& e : in_.followers(last))
      left.tail[last] = std::max(left.tail[last], left.time[e.block] + left.tail[e.block]);
  }
  return left;
}

Nanoseconds Bounds::period(int unroll) const {
  Nanoseconds bound = unroll * in_.heaviest_load();
  for (int d = 0; d < in_.devices(); ++d) {
    if (areas_[d]) bound = std::max(bound, window_of(*areas_[d], unroll, in_.room(d)));
  }
  return bound;
}

Nanoseconds Bounds::makespan(int micro_batches) const {
  Nanoseconds bound = in_.critical_path();
  std::vector<Task> work;
  for (int d = 0; d < in_.devices(); ++d) {
    work.clear();
    for (const int b : in_.blocks_on(d))
      work.push_back({in_.head(b), micro_batches * in_.time(b), in_.tail(b)});
    bound = std::max(bound, least_end(work));
    if (!areas_[d]) continue;
    const Nanoseconds window = window_of(*areas_[d], micro_batches, in_.room(d));
    bound = std::max(bound, areas_[d]->head + window + areas_[d]->tail);
  }
  return std::max(bound, around_several_devices(micro_batches));
}

/// M6 of M2, where nothing stays of what is cut out.
Nanoseconds Bounds::around_several_devices(int micro_batches) const {
  Nanoseconds bound = 0;
  std::vector<Task> work;
  for (const Beside& left : beside_) {
    for (int d = 0; d < in_.devices(); ++d) {
      work.clear();
      for (const int b : in_.blocks_on(d))
        work.push_back({left.head[b], micro_batches * left.time[b], left.tail[b]});
      bound = std::max(bound, micro_batches * left.cut_out + least_end(work));
    }
  }
  return bound;
}

Nanoseconds Bounds::span(int micro_batches) const {
  Nanoseconds bound = micro_batches * in_.heaviest_load();
  for (int d = 0; d < in_.devices(); ++d) {
    if (areas_[d]) bound = std::max(bound, window_of(*areas_[d], micro_batches, in_.room(d)));
    if (d == 0 || (d + 1) * size_ <= kMostOrigins) bound = std::max(bound, between_starts(d, micro_batches));
  }
  return bound;
}

/// S1 and S2 from device d.
Nanoseconds Bounds::between_starts(int d, int micro_batches) const {
  const std::size_t blocks = in_.blocks();
  std::vector<Nanoseconds> from(blocks, -1);
  std::vector<Nanoseconds> to(blocks, -1);
  for (const int b : in_.blocks_on(d)) from[b] = to[b] = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    const int b = in_.topological()[i];
    const int last = in_.topological()[blocks - 1 - i];
    for (const Edge& e : in_.inputs(b)) {
      if (from[e.block] >= 0) from[b] = std::max(from[b], from[e.block] + in_.time(e.block) + e.transfer);
    }
    for (const Edge& e : in_.followers(last)) {
      if (to[e.block] >= 0) to[last] = std::max(to[last], e.transfer + in_.time(e.block) + to[e.block]);
    }
  }
  Nanoseconds bound = 0;
  std::vector<Task> between;
  for (int e = 0; e < in_.devices(); ++e) {
    between.clear();
    for (const int b : in_.blocks_on(e)) {
      if (from[b] < 0 || to[b] < 0) continue;
      between.push_back({from[b], micro_batches * in_.time(b), to[b]});
      bound = std::max(bound, from[b] + in_.time(b) + to[b]);
    }
    bound = std::max(bound, least_end(between));
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
