// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads graphs and devices from CSV, as published with Mayer et al. (arXiv 1711.01912): a header line, then
// one row each; fields by ",", lists by ";", spaces around fields ignored. docs/partition.md shows both
// files.
//
// Graph: id, successors, predecessors, vertices on the same device, tensor size, operations, memory, device
// kind ("NO": any), name (optional). An edge may be named at either end or at both. Devices: id, memory,
// operations per time unit, rates, kind. The rates of a row are those to all later devices, in both
// directions (the published form), or those from this device to every device, its own entry not used; all
// rows alike. The header says which column is which (csv_columns.h).

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "search/graph/graph.h"

namespace ostinato::graph {

/// Throws InputError(file:line) for what build_graph refuses, for columns that are missing or not clear, and
/// for what is not a number.
OperatorGraph read_graph_csv(const std::filesystem::path& path);
OperatorGraph parse_graph_csv(std::string_view text, const std::string& source);

/// Throws InputError(file:line) for missing columns or rates, numbers out of range, and ids given twice.
GraphDevices read_devices_csv(const std::filesystem::path& path);
GraphDevices parse_devices_csv(std::string_view text, const std::string& source);

inline constexpr std::size_t kMaxGraphBytes = std::size_t{2} << 30;

}  // namespace ostinato::graph
