// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/bounds.h"

#include <algorithm>
#include <set>

#include "search/bounds/one_machine.h"

namespace ostinato {
namespace {

using Wide = __int128;

bool share_a_device(std::span<const int> a, std::span<const int> b) {
  if (a.size() > b.size()) std::swap(a, b);
  return std::any_of(a.begin(), a.end(), [&](int d) { return std::binary_search(b.begin(), b.end(), d); });
}

/// Limits for large placements (docs/bounds.md, "Large placements"): beyond them less is tried, by a rule
/// that the checker knows too.
constexpr std::int64_t kMostOrigins = std::int64_t{1} << 26;
constexpr Wide kMostSharedWork = Wide{1} << 30;

/// Blocks and edges.
std::int64_t size_of(const Instance& in) {
  std::int64_t size = in.blocks();
  for (int b = 0; b < in.blocks(); ++b) size += static_cast<std::int64_t>(in.inputs(b).size());
  return size;
}

/// How many heads and how many tails of the blocks on d make sets for M3.
std::size_t most_thresholds(const Instance& in, int d, std::size_t widths, std::int64_t size) {
  const Wide one = static_cast<Wide>(widths) * size * in.devices();
  std::size_t most = 0;
  while (most < in.blocks_on(d).size() && static_cast<Wide>((most + 1) * (most + 1)) * one <= kMostSharedWork)
    ++most;
  return most;
}

/// At most `most` of the values, evenly by rank, the least of all first.
std::vector<Nanoseconds> evenly(const std::set<Nanoseconds>& values, std::size_t most) {
  std::vector<Nanoseconds> all(values.begin(), values.end());
  if (all.size() <= most) return all;
  std::vector<Nanoseconds> chosen;
  for (std::size_t i = 0; i < most; ++i) chosen.push_back(all[i * all.size() / most]);
  return chosen;
}

}  // namespace

Bounds::Bounds(const Instance& instance)
    : in_(instance), size_(size_of(instance)), held_(match_all(instance)) {
  areas_.resize(in_.devices());
  for (int d = 0; d < in_.devices(); ++d) {
    add_lines(d);
    if (held_[d] && in_.room(d) > 0) areas_[d] = area_of(in_, d, *held_[d]);
  }
}

/// M3 on one device: for pairs of a head and a tail of its blocks, the blocks that reach both.
void Bounds::add_lines(int d) {
  std::set<Nanoseconds> heads, tails;
  std::set<std::size_t> widths;
  for (const int b : in_.blocks_on(d)) {
    heads.insert(in_.head(b));
    tails.insert(in_.tail(b));
    widths.insert(in_.devices_of(b).size());
  }
  if (widths.size() < 2) return;  // M2 is all there is
  const std::size_t most = most_thresholds(in_, d, widths.size(), size_);
  for (const Nanoseconds h : evenly(heads, most)) {
    for (const Nanoseconds q : evenly(tails, most)) {
      std::vector<int> members;
      Nanoseconds work = 0;
      for (const int b : in_.blocks_on(d)) {
        if (in_.head(b) < h || in_.tail(b) < q) continue;
        members.push_back(b);
        work += in_.time(b);
      }
      if (!members.empty()) add_shared_lines(members, work);
    }
  }
}

/// M3: the idle time around the blocks of `work` that are on few devices.
void Bounds::add_shared_lines(const std::vector<int>& work, Nanoseconds load) {
  std::set<int> widths;
  for (const int b : work) widths.insert(static_cast<int>(in_.devices_of(b).size()));
  if (widths.size() < 2) return;
  Nanoseconds front = 0;
  Nanoseconds back = 0;
  for (const int width : widths) {
    front = std::max(front, idle_before(work, width, false));
    back = std::max(back, idle_before(work, width, true));
  }
  lines_.push_back({front + back, load});
}

/// min over x in O = {b in work: on at most `width` devices} of front(x), or of back(x) where `backwards`.
Nanoseconds Bounds::idle_before(const std::vector<int>& work, int width, bool backwards) const {
  const auto narrow = [&](int b) { return static_cast<int>(in_.devices_of(b).size()) <= width; };
  std::vector<char> in_work(in_.blocks(), 0);
  std::vector<int> shared;
  for (const int b : work) {
    in_work[b] = 1;
    if (!narrow(b)) shared.push_back(b);
  }
  const auto devices = [&](int b) { return in_.devices_of(b); };
  std::sort(shared.begin(), shared.end(),
            [&](int a, int b) { return std::ranges::lexicographical_compare(devices(a), devices(b)); });
  shared.erase(std::unique(shared.begin(), shared.end(),
                           [&](int a, int b) { return std::ranges::equal(devices(a), devices(b)); }),
               shared.end());                        // one of each set of devices
  std::vector<Nanoseconds> idle(in_work.size(), 0);  // up to and without b
  for (std::size_t i = 0; i < idle.size(); ++i) {
    const int c = in_.topological()[backwards ? idle.size() - 1 - i : i];
    const bool blocks_work = !in_work[c] && std::all_of(shared.begin(), shared.end(), [&](int s) {
      return share_a_device(in_.devices_of(c), in_.devices_of(s));
    });
    const Nanoseconds own = blocks_work ? in_.time(c) : 0;
    for (const Edge& e : backwards ? in_.inputs(c) : in_.followers(c)) {
      idle[e.block] = std::max(idle[e.block], idle[c] + own + (shared.empty() ? e.transfer : 0));
    }
  }
  Nanoseconds least = std::numeric_limits<Nanoseconds>::max();
  for (const int b : work) {
    if (narrow(b)) least = std::min(least, idle[b]);
  }
  return least;
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
  for (const Line& line : lines_) bound = std::max(bound, line.fixed + micro_batches * line.work);
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
