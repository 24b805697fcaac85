// SPDX-License-Identifier: Apache-2.0
#include "search/placement/lanes.h"

#include <algorithm>
#include <cassert>

#include "search/files/value.h"

namespace ostinato {

int add_lane(Placement& placement, int device, const std::string& lane) {
  assert(placement.devices[device].lane_of < 0 && find_lane(placement, device, lane) < 0);
  Device made;
  made.name = placement.devices[device].name + ":" + lane;
  made.lane_of = device;
  made.lane = lane;
  placement.devices.push_back(std::move(made));
  return static_cast<int>(placement.devices.size()) - 1;
}

int find_lane(const Placement& placement, int device, const std::string& lane) {
  if (lane == kComputing) return device;
  const auto found = std::ranges::find_if(
      placement.devices, [&](const Device& one) { return one.lane_of == device && one.lane == lane; });
  return found == placement.devices.end() ? -1 : static_cast<int>(found - placement.devices.begin());
}

void link_lanes(Placement& placement) {
  std::vector<std::vector<int>> all(count_without_lanes(placement));  // each device and its lanes
  for (int d = 0; d < static_cast<int>(placement.devices.size()); ++d)
    all[device_of(placement, d)].push_back(d);
  const auto given = placement.links;
  for (const auto& [pair, link] : given)
    for (const int from : all[pair.first])
      for (const int to : all[pair.second]) placement.links[{from, to}] = link;
  if (placement.link.latency == 0 && placement.link.bytes_per_second == 0) return;
  for (const std::vector<int>& here : all)
    for (const int from : here)
      for (const int to : here)
        if (from != to) placement.links[{from, to}] = Link{};
}

int count_without_lanes(const Placement& placement) {
  return static_cast<int>(
      std::ranges::count_if(placement.devices, [](const Device& device) { return device.lane_of < 0; }));
}

int device_of(const Placement& placement, int lane) {
  const int device = placement.devices[lane].lane_of;
  return device < 0 ? lane : device;
}

bool runs_on_lane(const Placement& placement, const Block& block) {
  return placement.devices[block.devices.front()].lane_of >= 0;  // lanes stand behind all devices
}

std::string no_memory_for(const Placement& placement, const Block& block) {
  for (const int d : block.devices) {
    const Device& device = placement.devices[d];
    if (device.lane_of < 0 || std::ranges::find(block.devices, device.lane_of) != block.devices.end())
      continue;
    return "block " + in_quotes(block.name) + " is on lane " + in_quotes(device.lane) +
           ", which has no memory: count what it holds in a block of its device before it, which takes it, "
           "and in one behind it, which gives it back";
  }
  return "";
}

std::vector<int> with_lanes_beside(const Placement& placement) {
  std::vector<int> order;
  for (int d = 0; d < static_cast<int>(placement.devices.size()); ++d) order.push_back(d);
  std::ranges::stable_sort(order, {}, [&](int d) { return device_of(placement, d); });
  return order;
}

std::vector<int> rows_of(const Placement& placement) {
  const std::vector<int> order = with_lanes_beside(placement);
  std::vector<int> rows(order.size());
  for (std::size_t row = 0; row < order.size(); ++row) rows[order[row]] = static_cast<int>(row);
  return rows;
}

}  // namespace ostinato
