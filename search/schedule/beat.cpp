// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/beat.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace ostinato {
namespace {

constexpr int kMostTrips = 1 << 16;

/// From one device to another, for each edge: from the start of its input to its arrival.
using Ways = std::map<std::pair<int, int>, std::vector<Nanoseconds>>;

Ways ways_between_devices(const Instance& in) {
  Ways ways;
  for (int a = 0; a < in.blocks(); ++a) {
    if (in.devices_of(a).size() > 1) continue;
    const int from = in.devices_of(a).front();
    for (const Edge& e : in.followers(a)) {
      const int to = in.devices_of(e.block).front();
      if (in.devices_of(e.block).size() == 1 && to != from)
        ways[{from, to}].push_back(in.time(a) + e.transfer);
    }
  }
  return ways;
}

}  // namespace

Nanoseconds beat_of(const Instance& in) {
  const Ways ways = ways_between_devices(in);
  std::map<Nanoseconds, int> trips;
  int looked_at = 0;
  for (const auto& [devices, there] : ways) {
    const auto back = ways.find({devices.second, devices.first});
    if (devices.first > devices.second || back == ways.end()) continue;
    for (const Nanoseconds one : there) {
      for (const Nanoseconds other : back->second) {
        if (++looked_at > kMostTrips) return 0;
        ++trips[one + other];
      }
    }
  }
  const auto most = std::max_element(trips.begin(), trips.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == trips.end() ? 0 : most->first;
}

}  // namespace ostinato
