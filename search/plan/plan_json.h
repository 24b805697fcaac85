// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading and writing ostinato-plan/1 (JSON).

#include <filesystem>
#include <string>
#include <string_view>

#include "search/files/file.h"
#include "search/placement/placement_toml.h"
#include "search/plan/plan.h"

namespace ostinato {

/// Reads a plan for `placement` (block names become indices). Throws InputError with file:line as
/// docs/formats.md asks, also when the plan names another placement (by sha256, if both are known).
Plan read_plan(const std::filesystem::path& path, const Placement& placement,
               const std::string& placement_sha256);
Plan parse_plan(std::string_view text, const std::string& name, const Placement& placement,
                const std::string& placement_sha256);

struct PlanAndPlacement {
  PlacementFile file;
  Plan plan;
};

/// Reads both, the placement first. Throws InputError as read_placement() and read_plan().
PlanAndPlacement read_plan_and_placement(const std::filesystem::path& plan,
                                         const std::filesystem::path& placement);

/// The placement that a plan names by its digest: one of `given`, else a .toml file in the plan's folder.
/// Throws InputError where there is none, and as read_plan().
std::filesystem::path placement_of(const std::filesystem::path& plan,
                                   const std::vector<std::string>& given = {});

/// The same plan gives the same bytes.
std::string format_plan(const Plan& plan, const Placement& placement);
void format_plan(const Plan& plan, const Placement& placement, const Sink& sink);

inline constexpr std::size_t kMaxPlanBytes = std::size_t{2} << 30;

}  // namespace ostinato
