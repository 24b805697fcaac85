// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small operator graphs and devices for tests: random ones, and devices with one rate between all.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "search/graph/graph.h"
#include "search/numbers/random.h"
#include "tests/support/source_dir.h"

namespace ostinato::test {

using namespace ostinato::graph;

/// Devices of the given speeds; `kinds[d]` is 'C' (CPU) or 'G' (GPU), all CPU where it is empty.
inline GraphDevices devices_of(const std::vector<std::int64_t>& speeds, std::int64_t rate = 10,
                               const std::string& kinds = "", std::int64_t memory = 1'000'000) {
  GraphDevices devices;
  devices.source = "devices";
  for (std::size_t d = 0; d < speeds.size(); ++d)
    devices.devices.push_back({static_cast<std::int64_t>(d), memory, speeds[d],
                               d < kinds.size() && kinds[d] == 'G' ? "GPU" : "CPU"});
  devices.rates.assign(speeds.size() * speeds.size(), rate);
  return devices;
}

struct RandomGraphOptions {
  int vertices = 8;
  int edge_percent = 30;
  int group_percent = 20;  ///< of vertices that share a device with another one
  int gpu_percent = 10;
  bool shuffled_ids = false;  ///< else edges go from lower to higher ids
};

/// Ids start at 1 and leave gaps.
inline OperatorGraph random_graph(std::uint64_t seed, const RandomGraphOptions& o = {}) {
  Random random(seed);
  std::vector<GraphVertex> rows;
  std::vector<int> ids(o.vertices);
  for (int v = 0; v < o.vertices; ++v) ids[v] = 2 * v + 1;
  if (o.shuffled_ids) Random(seed + 1).shuffle(ids);
  for (int v = 0; v < o.vertices; ++v) {
    GraphVertex row;
    row.id = ids[v];
    row.tensor = random.below(40);
    row.operations = random.below(60);
    row.memory = random.below(10);
    for (int u = 0; u < v; ++u)
      if (random.below(100) < o.edge_percent) row.after.push_back(ids[u]);
    if (v > 0 && random.below(100) < o.group_percent)
      row.together.push_back(ids[random.below(v)]);
    else if (random.below(100) < o.gpu_percent)
      row.kind = "GPU";
    rows.push_back(row);
  }
  return build_graph(std::move(rows), "random");
}

/// Speeds, rates in both directions and kinds at random; the first device is a CPU, the second a GPU.
inline GraphDevices random_devices(std::uint64_t seed, int count) {
  Random random(seed);
  GraphDevices devices = devices_of(std::vector<std::int64_t>(count, 1));
  for (int d = 0; d < count; ++d) {
    devices.devices[d].speed = 1 + random.below(20);
    devices.devices[d].kind = d == 1 || (d > 1 && random.below(2) == 1) ? "GPU" : "CPU";
  }
  for (std::int64_t& rate : devices.rates) rate = 1 + random.below(20);
  return devices;
}

/// The authors' files, where they are: $OSTINATO_DATA, or shared/data beside the source folder; else "".
inline std::filesystem::path mayer_data() {
  const char* given = std::getenv("OSTINATO_DATA");
  const std::filesystem::path folder =
      (given != nullptr ? std::filesystem::path(given) : source_dir() / ".." / "shared" / "data") /
      "mayer2017";
  return std::filesystem::exists(folder / "devices-50.csv") ? folder : std::filesystem::path();
}

}  // namespace ostinato::test
