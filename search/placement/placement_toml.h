// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading and writing ostinato-placement/1 (TOML).

#include <filesystem>
#include <string>
#include <string_view>

#include "search/placement/placement.h"

namespace ostinato {

/// Optional `[model]` of the file: the model that the placement was made for, as its profile names it.
struct ModelFacts {
  std::string sha256;                  ///< of the profile; empty: not known
  std::vector<std::string> layers;     ///< each layer's name, a space, and its digest; empty: not known
  int micro_batch_size = 0;            ///< samples of a micro-batch that was profiled; 0: not known
  std::vector<Bytes> step_memory;      ///< by device: what the end of a training step takes for a while above
                                       ///< static memory, when nothing is kept; empty: not known
  std::vector<Nanoseconds> step_time;  ///< by device: of the optimizer's step; empty: not known
};

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
