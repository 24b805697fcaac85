// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading ostinato-devices/1 (TOML); docs/formats.md describes every key.
//
//   format = "ostinato-devices/1"
//   memory_unit = "GiB"                                                    # or each amount has it: "140GiB"
//   [within]                                                               # link inside a node
//   latency = 3
//   bandwidth = 300
//   [between]                                                              # link between nodes
//   latency = 15
//   bandwidth = 25
//   [[kinds]]
//   name = "H200"
//   memory = 140
//   [[nodes]]
//   kind = "H200"
//   devices = 8
//   count = 2                                                              # two nodes of 8 devices

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "search/profile/cluster.h"

namespace ostinato {

/// Throws InputError with file:line for anything that the format refuses: an unknown version or key ("did you
/// mean"), a duplicate kind or node, an unknown kind, no devices or more than kMostDevices, a speed of 0.
/// `profile` of a kind is not read here: its path is resolved against the folder of the file, and must exist.
Cluster read_cluster(const std::filesystem::path& path);
/// `folder`: which paths of profiles are resolved against; null: they stay as they are.
Cluster parse_cluster(std::string_view text, const std::string& name,
                      const std::filesystem::path* folder = nullptr);

/// The amounts of memory of a device file that parse_cluster() takes, in the units of the file:
/// "devices.toml:4: 40GiB of memory on 'A'".
std::vector<std::string> memory_as_written(std::string_view text, const std::string& name);

inline constexpr int kMostDevices = 65536;
inline constexpr std::size_t kMaxClusterBytes = std::size_t{16} << 20;

}  // namespace ostinato
