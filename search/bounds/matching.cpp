// SPDX-License-Identifier: Apache-2.0
#include "search/bounds/matching.h"

#include <algorithm>
#include <limits>
#include <map>
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

/// Of the taker: of how many blocks the bytes may be that it takes, as far as that counts.
using Choices = std::map<int, int>;

/// The takers with the fewest choices first, and then the longest distance. What is left: at the giver -1.
/// nullopt: some bytes given back are not matched.
std::optional<std::vector<Held>> match(const Instance& in, int d, std::vector<Held> pairs,
                                       const Choices& choices) {
  const auto key = [&](const Held& h) {
    return std::tuple(choices.at(h.taker), -h.distance, h.taker, h.giver);
  };
  std::sort(pairs.begin(), pairs.end(), [&](const Held& x, const Held& y) { return key(x) < key(y); });
  std::vector<Held> matched;
  std::vector<Bytes> left(in.blocks());
  for (const int b : in.blocks_on(d)) left[b] = in.memory(b);
  for (Held pair : pairs) {
    pair.bytes = std::min(left[pair.taker], -left[pair.giver]);
    if (pair.bytes == 0) continue;
    left[pair.taker] -= pair.bytes;
    left[pair.giver] += pair.bytes;
    matched.push_back(pair);
  }
  for (const int b : in.blocks_on(d)) {
    if (left[b] < 0) return std::nullopt;
    if (left[b] > 0) matched.push_back({b, -1, left[b], 0});
  }
  return matched;
}

/// Blocks that take memory * (blocks + edges + 32 * blocks that give some back), of all limited devices.
constexpr __int128 kMostMatching = 1 << 28;

bool affordable(const Instance& in) {
  __int128 size = in.blocks(), work = 0;
  for (int b = 0; b < in.blocks(); ++b) size += in.inputs(b).size();
  for (int d = 0; d < in.devices(); ++d) {
    if (!in.limited(d)) continue;
    __int128 takers = 0, givers = 0;
    for (const int b : in.blocks_on(d)) {
      takers += in.memory(b) > 0 ? 1 : 0;
      givers += in.memory(b) < 0 ? 1 : 0;
    }
    work += takers * (size + 32 * givers);
  }
  return work <= kMostMatching;
}

}  // namespace

std::optional<std::vector<Held>> match(const Instance& in, int d) {
  const std::vector<Held> pairs = pairs_on(in, d);
  Choices none, counted;
  for (const Held& pair : pairs) {
    none[pair.taker] = 0;
    ++counted[pair.taker];
  }
  std::optional<std::vector<Held>> matched = match(in, d, pairs, none);
  return matched ? matched : match(in, d, pairs, counted);
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
