#include "search/bounds/bounds.h"

#include <algorithm>
#include <set>

namespace ostinato {
namespace {

using Wide = __int128;

Nanoseconds ceil_divide(Wide value, Wide by) { return static_cast<Nanoseconds>((value + by - 1) / by); }

bool share_a_device(std::span<const int> a, std::span<const int> b) {
  if (a.size() > b.size()) std::swap(a, b);
  return std::any_of(a.begin(), a.end(), [&](int d) { return std::binary_search(b.begin(), b.end(), d); });
}

/// One pair of M4: bytes taken by one block and given back by another.
struct Pair {
  Nanoseconds distance;
  int take;
  int give;
};

std::vector<Pair> pairs_on(const Instance& in, int d) {
  std::vector<Pair> pairs;
  for (const int a : in.blocks_on(d)) {
    if (in.memory(a) <= 0) continue;
    const std::vector<Nanoseconds> distance = distances_from(in, a);
    for (const int c : in.blocks_on(d)) {
      if (in.memory(c) < 0 && distance[c] >= 0) pairs.push_back({distance[c], a, c});
    }
  }
  std::sort(pairs.begin(), pairs.end(), [](const Pair& x, const Pair& y) {
    if (x.distance != y.distance) return x.distance > y.distance;
    return x.take != y.take ? x.take < y.take : x.give < y.give;
  });
  return pairs;
}

/// M4's matching on one device; absent if some bytes given back find no block that took them.
std::optional<Bounds::Area> area_on(const Instance& in, int d) {
  constexpr Nanoseconds far = std::numeric_limits<Nanoseconds>::max();
  Bounds::Area area{0, far, far};
  std::vector<Bytes> left(static_cast<std::size_t>(in.blocks()));
  for (const int b : in.blocks_on(d)) left[b] = in.memory(b);
  for (const Pair& pair : pairs_on(in, d)) {
    const Bytes bytes = std::min(left[pair.take], -left[pair.give]);
    if (bytes == 0) continue;
    left[pair.take] -= bytes;
    left[pair.give] += bytes;
    area.bytes_time += static_cast<Wide>(bytes) * pair.distance;
    area.head = std::min(area.head, in.head(pair.take));
    area.tail = std::min(area.tail, in.tail(pair.give));
  }
  for (const int b : in.blocks_on(d)) {
    if (left[b] < 0) return std::nullopt;
    if (in.workspace(b) == 0) continue;
    area.bytes_time += static_cast<Wide>(in.workspace(b)) * in.time(b);
    area.head = std::min(area.head, in.head(b));
    area.tail = std::min(area.tail, in.tail(b));
  }
  if (area.head == far || area.tail == far) area.head = area.tail = 0;
  return area;
}

/// The sets of M2 and S1 on one device: for every pair of a front and a back value, the blocks that reach
/// both. Calls visit(members, least front, least back, sum of times).
template <typename Visit>
void for_threshold_sets(const Instance& in, const std::vector<int>& blocks,
                        const std::vector<Nanoseconds>& front, const std::vector<Nanoseconds>& back,
                        Visit visit) {
  std::set<Nanoseconds> fronts;
  std::set<Nanoseconds> backs;
  for (const int b : blocks) {
    fronts.insert(front[b]);
    backs.insert(back[b]);
  }
  std::vector<int> members;
  for (const Nanoseconds h : fronts) {
    for (const Nanoseconds q : backs) {
      members.clear();
      Nanoseconds work = 0;
      for (const int b : blocks) {
        if (front[b] < h || back[b] < q) continue;
        members.push_back(b);
        work += in.time(b);
      }
      if (!members.empty()) visit(members, h, q, work);
    }
  }
}

}  // namespace

std::vector<Nanoseconds> distances_from(const Instance& in, int from) {
  std::vector<Nanoseconds> distance(static_cast<std::size_t>(in.blocks()), -1);
  distance[from] = in.time(from);
  for (std::size_t i = static_cast<std::size_t>(in.rank(from)); i < in.topological().size(); ++i) {
    const int b = in.topological()[i];
    if (distance[b] < 0) continue;
    for (const Edge& e : in.followers(b)) {
      distance[e.block] = std::max(distance[e.block], distance[b] + e.transfer + in.time(e.block));
    }
  }
  return distance;
}

Bounds::Bounds(const Instance& instance) : in_(instance) {
  lines_.push_back({in_.critical_path(), 0});
  for (int d = 0; d < in_.devices(); ++d) {
    add_lines(d);
    areas_.push_back(in_.limited(d) && in_.room(d) > 0 ? area_on(in_, d) : std::nullopt);
  }
}

void Bounds::add_lines(int d) {
  std::vector<Nanoseconds> head(static_cast<std::size_t>(in_.blocks()));
  std::vector<Nanoseconds> tail(head.size());
  std::vector<int> blocks(in_.blocks_on(d).begin(), in_.blocks_on(d).end());
  for (const int b : blocks) {
    head[b] = in_.head(b);
    tail[b] = in_.tail(b);
  }
  for_threshold_sets(in_, blocks, head, tail,
                     [&](const std::vector<int>& members, Nanoseconds h, Nanoseconds q, Nanoseconds work) {
                       lines_.push_back({h + q, work});
                       add_shared_lines(members, work);
                     });
}

/// M3: the idle time around the blocks of `work` that are on few devices.
void Bounds::add_shared_lines(const std::vector<int>& work, Nanoseconds load) {
  std::set<int> widths;
  for (const int b : work) widths.insert(static_cast<int>(in_.devices_of(b).size()));
  if (widths.size() < 2) return;  // M2 is all there is
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
  std::vector<char> in_work(static_cast<std::size_t>(in_.blocks()), 0);
  std::vector<int> shared;
  for (const int b : work) {
    in_work[b] = 1;
    if (!narrow(b)) shared.push_back(b);
  }
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
    if (areas_[d]) bound = std::max(bound, ceil_divide(areas_[d]->bytes_time * unroll, in_.room(d)));
  }
  return bound;
}

Nanoseconds Bounds::makespan(int micro_batches) const {
  Nanoseconds bound = 0;
  for (const Line& line : lines_) bound = std::max(bound, line.fixed + micro_batches * line.work);
  for (int d = 0; d < in_.devices(); ++d) {
    if (!areas_[d]) continue;
    const Nanoseconds window = ceil_divide(areas_[d]->bytes_time * micro_batches, in_.room(d));
    bound = std::max(bound, areas_[d]->head + window + areas_[d]->tail);
  }
  return bound;
}

Nanoseconds Bounds::span(int micro_batches) const {
  Nanoseconds bound = 0;
  const std::size_t blocks = static_cast<std::size_t>(in_.blocks());
  for (int d = 0; d < in_.devices(); ++d) {
    if (areas_[d]) bound = std::max(bound, ceil_divide(areas_[d]->bytes_time * micro_batches, in_.room(d)));
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
    for (int e = 0; e < in_.devices(); ++e) {
      std::vector<int> between;
      for (const int b : in_.blocks_on(e)) {
        if (from[b] < 0 || to[b] < 0) continue;
        between.push_back(b);
        bound = std::max(bound, from[b] + in_.time(b) + to[b]);
      }
      for_threshold_sets(in_, between, from, to,
                         [&](const std::vector<int>&, Nanoseconds h, Nanoseconds q, Nanoseconds work) {
                           bound = std::max(bound, h + micro_batches * work + q);
                         });
    }
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
