// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading and writing ostinato-placement/1 (TOML).

#include <filesystem>
#include <string>
#include <string_view>

#include "search/placement/model_facts.h"
#include "search/placement/placement.h"

namespace ostinato {

struct PlacementFile {
  Placement placement;
  std::string sha256;  ///< of the bytes of the file
  ModelFacts model = {};
};

/// Reads and checks a placement. Throws InputError with file:line for anything that docs/formats.md refuses:
/// an unknown version, an unknown key ("did you mean"), a duplicate key or name, a number out of range,
/// nesting deeper than 64, a file over kMaxPlacementBytes, a cycle, an unknown block or device, zero devices
/// or blocks, a total time beyond int64.
PlacementFile read_placement(const std::filesystem::path& path);

/// The same from text; `name` stands in the messages for the file.
PlacementFile parse_placement(std::string_view text, const std::string& name);

/// TOML text that parse_placement() reads back to the same placement, in nanoseconds and bytes where a larger
/// unit would round. The same placement gives the same bytes.
std::string format_placement(const Placement& placement);

/// The table [model], to be appended to format_placement(); "" where nothing is known.
std::string format_model(const ModelFacts& model);

inline constexpr std::size_t kMaxPlacementBytes = std::size_t{256} << 20;

}  // namespace ostinato
