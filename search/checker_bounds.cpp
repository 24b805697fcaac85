#include "search/checker_bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <map>
#include <set>

namespace ostinato::checker {
namespace {

constexpr Wide kNone = -1;  ///< no path

/// ceil(n * amount / room) without overflow, at most kUnbounded.
Wide times_over(Wide n, Wide amount, Wide room) {
  const Wide whole = amount / room;
  if (whole > Bounds::kUnbounded / n) return Bounds::kUnbounded;
  const Wide rest = amount % room * n;
  return std::min(Bounds::kUnbounded, whole * n + rest / room + (rest % room != 0 ? 1 : 0));
}

bool share_a_device(const std::vector<int>& a, const std::vector<int>& b) {
  return std::any_of(a.begin(), a.end(), [&](int d) { return std::find(b.begin(), b.end(), d) != b.end(); });
}

template <typename Why>
void raise(Bound& best, Wide value, Why why) {
  if (value <= best.value) return;
  best = {value, why()};
}

}  // namespace

Bounds::Bounds(const Placement& placement)
    : placement_(placement),
      inputs_(placement.blocks.size()),
      outputs_(placement.blocks.size()),
      on_device_(placement.devices.size()),
      head_(placement.blocks.size(), 0),
      tail_(placement.blocks.size(), 0) {
  std::vector<std::size_t> waiting(placement.blocks.size());
  for (int b = 0; b < blocks(); ++b) {
    for (const int d : block(b).devices) on_device_[d].push_back(b);
    for (const Dependency& input : block(b).after) {
      const Wide transfer = transfer_time(placement, input, block(b));
      inputs_[b].push_back({input.block, transfer});
      outputs_[input.block].push_back({b, transfer});
    }
    waiting[b] = inputs_[b].size();
    if (waiting[b] == 0) order_.push_back(b);
  }
  for (std::size_t at = 0; at < order_.size(); ++at) {
    for (const Edge& edge : outputs_[order_[at]]) {
      if (--waiting[edge.block] == 0) order_.push_back(edge.block);
    }
  }
  assert(order_.size() == placement.blocks.size() && "a placement has no cycle");
  for (const int b : order_) {
    for (const Edge& in : inputs_[b])
      head_[b] = std::max(head_[b], head_[in.block] + block(in.block).time + in.transfer);
  }
  for (auto b = order_.rbegin(); b != order_.rend(); ++b) {
    for (const Edge& out : outputs_[*b]) {
      tail_[*b] = std::max(tail_[*b], out.transfer + block(out.block).time + tail_[out.block]);
    }
  }
  std::map<std::vector<int>, int> classes;
  for (const Block& b : placement.blocks) {
    device_set_.push_back(classes.emplace(b.devices, static_cast<int>(classes.size())).first->second);
  }
  conflict_.assign(classes.size(), std::vector<char>(classes.size(), 0));
  for (const auto& [a, i] : classes) {
    for (const auto& [b, j] : classes) conflict_[i][j] = share_a_device(a, b) ? 1 : 0;
  }
}

Bound Bounds::makespan(int n, Wide enough) const {
  Bound best;
  one_micro_batch(best);
  if (best.value < enough) one_device(n, best);
  if (best.value < enough) memory(n, true, best);
  if (best.value < enough) several_devices(n, enough, best);
  return best;
}

Bound Bounds::period(int unroll) const {
  Bound best;
  for (std::size_t d = 0; d < on_device_.size(); ++d) {
    Wide load = 0;
    for (const int b : on_device_[d]) load += block(b).time;
    raise(best, load * unroll, [&] { return fmt::format("P1: the work of device {}", d); });
    const Area area = area_of(static_cast<int>(d));
    if (!area.usable) continue;
    const Wide room = static_cast<Wide>(placement_.devices[d].memory) - placement_.devices[d].static_memory;
    raise(best, times_over(unroll, area.area, room),
          [&] { return fmt::format("P2: the memory of device {}", d); });
  }
  return best;
}

Bound Bounds::latency() const {
  Bound best;
  one_micro_batch(best);
  one_device(1, best);
  several_devices(1, kUnbounded, best);
  return best;
}

Bound Bounds::span(int n) const {
  Bound best;
  for (std::size_t d = 0; d < on_device_.size(); ++d) {
    const std::vector<Wide> from = from_device(static_cast<int>(d), false);
    const std::vector<Wide> to = from_device(static_cast<int>(d), true);
    for (int b = 0; b < blocks(); ++b) {
      if (from[b] == kNone || to[b] == kNone) continue;
      raise(best, from[b] + block(b).time + to[b],
            [&] { return fmt::format("S2: block '{}' between blocks of device {}", block(b).name, d); });
    }
    for (std::size_t e = 0; e < on_device_.size(); ++e) {
      std::vector<Member> members;
      for (const int b : on_device_[e]) {
        if (from[b] != kNone && to[b] != kNone) members.push_back({b, from[b], to[b]});
      }
      raise(best, largest_set(std::move(members), n),
            [&] { return fmt::format("S1: the work of device {} between blocks of device {}", e, d); });
    }
  }
  memory(n, false, best);
  return best;
}

void Bounds::one_micro_batch(Bound& best) const {
  for (int b = 0; b < blocks(); ++b) {
    raise(best, head_[b] + block(b).time + tail_[b], [&] {
      return fmt::format("M1: the longest path of one micro-batch, through block '{}'", block(b).name);
    });
  }
}

void Bounds::one_device(int n, Bound& best) const {
  for (std::size_t d = 0; d < on_device_.size(); ++d) {
    std::vector<Member> members;
    for (const int b : on_device_[d]) members.push_back({b, head_[b], tail_[b]});
    raise(best, largest_set(std::move(members), n),
          [&] { return fmt::format("M2: the work of device {} with what comes before and after it", d); });
  }
}

/// The largest min before + n * time + min after over the sets {before >= h, after >= q}.
Wide Bounds::largest_set(std::vector<Member> members, int n) const {
  std::sort(members.begin(), members.end(),
            [](const Member& a, const Member& b) { return a.after > b.after; });
  std::set<Wide> befores;
  for (const Member& member : members) befores.insert(member.before);
  Wide largest = 0;
  for (const Wide h : befores) {
    Wide time = 0;
    for (const Member& member : members) {
      if (member.before < h) continue;
      time += block(member.block).time;
      largest = std::max(largest, h + n * time + member.after);
    }
  }
  return largest;
}

void Bounds::memory(int n, bool borders, Bound& best) const {
  for (std::size_t d = 0; d < on_device_.size(); ++d) {
    const Area area = area_of(static_cast<int>(d));
    if (!area.usable) continue;
    const Wide room = static_cast<Wide>(placement_.devices[d].memory) - placement_.devices[d].static_memory;
    const Wide outside = borders ? area.before + area.after : 0;
    raise(best, outside + times_over(n, area.area, room),
          [&] { return fmt::format("{}: the memory of device {}", borders ? "M4" : "S3", d); });
  }
}

std::vector<Wide> Bounds::distances_from(int first) const {
  std::vector<Wide> distance(placement_.blocks.size(), kNone);
  distance[first] = block(first).time;
  for (const int b : order_) {
    for (const Edge& in : inputs_[b]) {
      if (distance[in.block] == kNone) continue;
      distance[b] = std::max(distance[b], distance[in.block] + in.transfer + block(b).time);
    }
  }
  return distance;
}

/// Forwards: from the start of a block on the device to the start of each block. Backwards: from the end of
/// each block to the end of a block on the device.
std::vector<Wide> Bounds::from_device(int device, bool backwards) const {
  std::vector<Wide> longest(placement_.blocks.size(), kNone);
  for (const int b : on_device_[device]) longest[b] = 0;
  const auto visit = [&](int b, const std::vector<Edge>& neighbours) {
    for (const Edge& edge : neighbours) {
      if (longest[edge.block] == kNone) continue;
      longest[b] = std::max(longest[b], longest[edge.block] + edge.transfer + block(edge.block).time);
    }
  };
  if (backwards) {
    for (auto b = order_.rbegin(); b != order_.rend(); ++b) visit(*b, outputs_[*b]);
  } else {
    for (const int b : order_) visit(b, inputs_[b]);
  }
  return longest;
}

/// M4: each byte given back is matched with one taken before it, longest paths first.
Bounds::Area Bounds::area_of(int device) const {
  struct Pair {
    Wide distance;
    int taker;
    int giver;
  };
  const Device& limits = placement_.devices[device];
  Area area;
  if (limits.memory == kUnlimited || limits.memory <= limits.static_memory) return area;
  std::map<int, Bytes> left;  // of each block that takes or gives: what is not matched yet
  std::vector<Pair> pairs;
  area.before = area.after = kUnbounded;
  const auto inside = [&](int first, int last) {
    area.before = std::min(area.before, head_[first]);
    area.after = std::min(area.after, tail_[last]);
  };
  for (const int a : on_device_[device]) {
    if (block(a).workspace > 0) {
      area.area += static_cast<Wide>(block(a).workspace) * block(a).time;
      inside(a, a);
    }
    left[a] = std::max(block(a).memory, -block(a).memory);
    if (block(a).memory <= 0) continue;
    const std::vector<Wide> distance = distances_from(a);
    for (const int c : on_device_[device]) {
      if (block(c).memory < 0 && distance[c] != kNone) pairs.push_back({distance[c], a, c});
    }
  }
  std::sort(pairs.begin(), pairs.end(), [](const Pair& x, const Pair& y) {
    if (x.distance != y.distance) return x.distance > y.distance;
    return x.taker != y.taker ? x.taker < y.taker : x.giver < y.giver;
  });
  for (const Pair& pair : pairs) {
    const Bytes matched = std::min(left[pair.taker], left[pair.giver]);
    if (matched == 0) continue;
    left[pair.taker] -= matched;
    left[pair.giver] -= matched;
    area.area += static_cast<Wide>(matched) * pair.distance;
    inside(pair.taker, pair.giver);
  }
  const bool all_matched = std::all_of(left.begin(), left.end(), [&](const auto& entry) {
    return block(entry.first).memory >= 0 || entry.second == 0;
  });
  area.usable = all_matched && area.area > 0;
  return area;
}

void Bounds::several_devices(int n, Wide enough, Bound& best) const {
  for (std::size_t d = 0; d < on_device_.size() && best.value < enough; ++d) {
    several_devices_on(static_cast<int>(d), n, best);
  }
}

void Bounds::several_devices_on(int device, int n, Bound& best) const {
  const std::vector<int>& all = on_device_[device];
  std::set<std::size_t> widths;
  std::set<Wide> heads, tails;
  for (const int b : all) {
    widths.insert(block(b).devices.size());
    heads.insert(head_[b]);
    tails.insert(tail_[b]);
  }
  if (widths.size() < 2) return;  // M2 says it all
  for (const Wide h : heads) {
    for (const Wide q : tails) {
      std::vector<int> set;
      Wide time = 0;
      Wide latest = 0, longest = 0;
      for (const int b : all) {
        if (head_[b] < h || tail_[b] < q) continue;
        set.push_back(b);
        time += block(b).time;
        latest = std::max(latest, head_[b]);
        longest = std::max(longest, tail_[b]);
      }
      if (set.empty() || n * time + latest + longest <= best.value) continue;
      Wide front = 0, back = 0;
      for (const std::size_t width : widths) {
        std::vector<int> first;
        for (const int b : set) {
          if (block(b).devices.size() <= width) first.push_back(b);
        }
        if (first.empty()) continue;
        front = std::max(front, idle_before(set, first, false));
        back = std::max(back, idle_before(set, first, true));
      }
      raise(best, n * time + front + back, [&] {
        return fmt::format("M3: {} blocks of device {} with the time in which none of them can run",
                           set.size(), device);
      });
    }
  }
}

/// M3: which blocks keep the device from `set` while none of `first` has started.
std::vector<char> Bounds::blocking(const std::vector<int>& set, const std::vector<int>& first) const {
  std::set<int> others;  // device sets of the blocks that are not in `first`
  for (const int b : set) {
    if (std::find(first.begin(), first.end(), b) == first.end()) others.insert(device_set_[b]);
  }
  std::vector<char> result(placement_.blocks.size(), 0);
  for (int c = 0; c < blocks(); ++c) {
    result[c] =
        std::all_of(others.begin(), others.end(), [&](int o) { return conflict_[device_set_[c]][o] != 0; })
            ? 1
            : 0;
  }
  for (const int b : set) result[b] = 0;
  return result;
}

/// The least front (or back) of M3 over the blocks of `first`.
Wide Bounds::idle_before(const std::vector<int>& set, const std::vector<int>& first, bool backwards) const {
  const std::vector<char> blocks_set = blocking(set, first);
  const bool with_transfers = set.size() == first.size();
  std::vector<Wide> longest(placement_.blocks.size(), 0);
  const auto visit = [&](int b, const std::vector<Edge>& neighbours) {
    for (const Edge& edge : neighbours) {
      const Wide time = blocks_set[edge.block] != 0 ? block(edge.block).time : 0;
      longest[b] = std::max(longest[b], longest[edge.block] + time + (with_transfers ? edge.transfer : 0));
    }
  };
  if (backwards) {
    for (auto b = order_.rbegin(); b != order_.rend(); ++b) visit(*b, outputs_[*b]);
  } else {
    for (const int b : order_) visit(b, inputs_[b]);
  }
  Wide least = kUnbounded;
  for (const int b : first) least = std::min(least, longest[b]);
  return least;
}

}  // namespace ostinato::checker
