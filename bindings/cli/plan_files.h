// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading a plan with its placement, and writing one without ever losing it.

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/cli/command_line.h"
#include "search/files/file.h"
#include "search/plan/plan_json.h"

namespace ostinato::cli {

/// What `verify`, `simulate`, `show` and `lower` begin with: "PLAN [PLACEMENT]" on their command line.
struct PlanArguments {
  std::string plan;
  std::string placement;  ///< as typed; "" where it is to be found beside the plan

  explicit PlanArguments(CommandLine& line);
  /// The placement typed, or else placement_of() the plan.
  std::string placement_file() const;
  PlanAndPlacement read() const;
  /// Throws InputError where the schedule does not hold for the placement (checker.h).
  PlanAndPlacement read_checked() const;
};

/// Throws InputError where both placements say which model they are of, and it is not the same: the times of
/// their plans do not compare. `other`: the file of `theirs`.
void check_same_model(const ModelFacts& first, const ModelFacts& theirs, const std::string& other);

/// Throws InputError where a file could not be written there: told before an hour of search, not after it.
void check_can_write(const std::filesystem::path& path);

/// What an option names, to be written: {"--output", "plan.json"}; an empty path is none.
using Written = std::pair<std::string, std::string>;

/// Throws UsageError where two of `outputs` are one file, or one of them is a file that the command reads.
void check_apart(const std::vector<Written>& outputs, const std::vector<std::string>& inputs);

/// What a search found, on its way to a file.
struct Found {
  std::string what;  ///< "plan"
  std::filesystem::path path;
  std::function<void(const Sink&)> write;
};

/// Of the plan's file.
Found found_plan(const std::filesystem::path& path, const Plan& plan, const Placement& placement);

/// Writes every one; one that cannot be written (a full disk, say) goes to the folder for temporary files, or
/// to standard error. Then throws InputError that says where each of those is.
///   save({found_plan("plan.json", plan, placement)}, io);
void save(const std::vector<Found>& all, Io& io);

}  // namespace ostinato::cli
