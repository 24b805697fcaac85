// SPDX-License-Identifier: Apache-2.0
#pragma once
// The curve of `ostinato search --pareto memory`: a table, JSON, and one plan file for each of its points.

#include <filesystem>
#include <string>
#include <vector>

#include "bindings/cli/run_search.h"
#include "search/placement/placement_toml.h"

namespace ostinato::cli {

/// Throws InputError where no folder of that name is there or can be made.
void make_folder(const std::filesystem::path& folder);

/// Throws UsageError where save_curve() could write over one of `inputs`.
void check_apart_from_curve(const std::filesystem::path& folder, const std::vector<std::string>& inputs);

/// Writes "memory-BYTES.json" for every plan, and returns their paths in the order of the curve. Says on
/// standard error how many plans of an earlier curve stay in the folder.
std::vector<std::string> save_curve(const std::filesystem::path& folder, ParetoCurve& curve,
                                    const PlacementFile& file, Io& io);

/// Memory, objective, proven bound within that memory, gap, and file of each plan; where the curve ends.
std::string curve_text(const SearchedCurve& searched, const PlacementFile& file,
                       const std::vector<std::string>& paths);
Json curve_json(const SearchedCurve& searched, const PlacementFile& file,
                const std::vector<std::string>& paths);

}  // namespace ostinato::cli
