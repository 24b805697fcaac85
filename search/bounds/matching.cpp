// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/matching.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

namespace ostinato {
namespace {

/// All pairs of a block that takes and one that a path leads to and that gives back.
std::vector<Held> pairs_on(const Instance& in, int d) {
  std::vector<Held> pairs;
  for (const int a : in.blocks_on(d)) {
    if (in.memory(a) <= 0) continue;
    const std::vector<Nanoseconds> distance = distances_from(in, a);
    for (const int c : in.blocks_on(d)) {
      if (in.memory(c) < 0 && distance[c] >= 0) pairs.push_back({a, c, 0, distance[c]});
    }
  }
  return pairs;
}

/// By block: how many block's bytes may be those that it takes, as far as that counts.
using Choices = std::map<int, int>;

/// The takers with the fewest choices first, and then the longest distance.
std::optional<std::vector<Held>> match_in_turn(std::vector<Held> pairs, const Choices& choices,
                                               std::map<int, Bytes> left) {
  const auto key = [&](const Held& h) {
    return std::tuple(choices.at(h.taker), -h.distance, h.taker, h.giver);
  };
  std::sort(pairs.begin(), pairs.end(), [&](const Held& x, const Held& y) { return key(x) < key(y); });
  std::vector<Held> matched;
  for (Held pair : pairs) {
    Bytes &taken = left[pair.taker], &given = left[pair.giver];
    pair.bytes = std::min(taken, -given);
    if (pair.bytes == 0) continue;
    taken -= pair.bytes;
    given += pair.bytes;
    matched.push_back(pair);
  }
  for (const auto& [block, bytes] : left) {
    if (bytes < 0) return std::nullopt;
    if (bytes > 0) matched.push_back({block, -1, bytes, 0});
  }
  return matched;
}

/// Blocks that take memory * (blocks + edges + 32 * blocks that give some back), of all limited devices.
constexpr __int128 kMostMatching = 1 << 28;

bool affordable(const Instance& in) {
  __int128 work = 0;
  for (int d = 0; d < in.devices(); ++d) {
    if (!in.limited(d)) continue;
    __int128 takers = 0, givers = 0;
    for (const int b : in.blocks_on(d)) {
      takers += in.memory(b) > 0 ? 1 : 0;
      givers += in.memory(b) < 0 ? 1 : 0;
    }
    work += takers * (in.size() + 32 * givers);
  }
  return work <= kMostMatching;
}

}  // namespace

std::optional<std::vector<Held>> match_pairs(const std::vector<Held>& pairs,
                                             const std::map<int, Bytes>& memory) {
  Choices none, counted;
  for (const Held& pair : pairs) {
    none[pair.taker] = 0;
    ++counted[pair.taker];
  }
  std::optional<std::vector<Held>> matched = match_in_turn(pairs, none, memory);
  return matched ? matched : match_in_turn(pairs, counted, memory);
}

std::optional<std::vector<Held>> match(const Instance& in, int d) {
  std::map<int, Bytes> memory;
  for (const int b : in.blocks_on(d)) memory[b] = in.memory(b);
  return match_pairs(pairs_on(in, d), memory);
}

Matchings match_all(const Instance& in) {
  Matchings held(in.devices());
  if (!affordable(in)) return held;
  for (int d = 0; d < in.devices(); ++d) {
    if (in.limited(d)) held[d] = match(in, d);
  }
  return held;
}

Matchings mirrored(const Matchings& held) {
  Matchings result = held;
  for (auto& of_device : result) {
    if (!of_device) continue;
    for (Held& h : *of_device) std::swap(h.taker, h.giver);
    if (std::any_of(of_device->begin(), of_device->end(), [](const Held& h) { return h.taker < 0; }))
      of_device.reset();
  }
  return result;
}

Area area_of(const Instance& in, int d, const std::vector<Held>& held) {
  constexpr Nanoseconds far = std::numeric_limits<Nanoseconds>::max();
  Area area{0, far, far};
  const auto add = [&](Bytes bytes, Nanoseconds time, int first, int last) {
    area.bytes_time += static_cast<__int128>(bytes) * time;
    area.head = std::min(area.head, in.head(first));
    area.tail = std::min(area.tail, in.tail(last));
  };
  for (const Held& h : held) {
    if (h.giver >= 0) add(h.bytes, h.distance, h.taker, h.giver);
  }
  for (const int b : in.blocks_on(d)) {
    if (in.workspace(b) != 0) add(in.workspace(b), in.time(b), b, b);
  }
  if (area.head == far) area.head = area.tail = 0;
  return area;
}

Nanoseconds window_of(const Area& area, int n, Bytes room) {
  const __int128 window = (area.bytes_time * n + room - 1) / room;
  return static_cast<Nanoseconds>(std::min(window, __int128{1} << 61));
}

std::vector<Nanoseconds> distances_from(const Instance& in, int from) {
  std::vector<Nanoseconds> distance(in.blocks(), -1);
  distance[from] = in.time(from);
  for (std::size_t i = in.rank(from); i < in.topological().size(); ++i) {
    const int b = in.topological()[i];
    if (distance[b] < 0) continue;
    for (const Edge& e : in.followers(b)) {
      distance[e.block] = std::max(distance[e.block], distance[b] + e.transfer + in.time(e.block));
    }
  }
  return distance;
}

}  // namespace ostinato
