// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading ostinato-sizes/1 (TOML): the micro-batches of one step, each with a size or its own times
// (docs/formats.md).
//
//   const Placement p = read_placement("v-shape-4.toml").placement;
//   const std::vector<MicroBatch> sizes = read_sizes("step.toml", p);

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "search/plan/sizes.h"

namespace ostinato {

/// Throws InputError with file:line as docs/formats.md asks.
std::vector<MicroBatch> read_sizes(const std::filesystem::path& path, const Placement& placement);
std::vector<MicroBatch> parse_sizes(std::string_view text, const std::string& name,
                                    const Placement& placement);

/// The same where the placement is still to be made: sizes alone.
struct BareSizes {
  std::vector<std::int64_t> sizes;  ///< of each micro-batch, >= 0
  std::int64_t of = 0;              ///< size of the micro-batch whose costs are known; 0: not said
};

/// Throws InputError with file:line, also for figures of blocks, which have no names yet.
BareSizes read_bare_sizes(const std::filesystem::path& path);
BareSizes parse_bare_sizes(std::string_view text, const std::string& name);

inline constexpr std::size_t kMaxSizesBytes = std::size_t{256} << 20;

}  // namespace ostinato
