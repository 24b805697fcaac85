// SPDX-License-Identifier: Apache-2.0
#pragma once
// From a plan to what each rank does: `ostinato lower`, and the first step of the plugin.
//
//   Program program = lower_files("plan.json", "placement.toml");
//   std::cout << format_program(program, TextForm::transfers);      // program_text.h
//
// Computes keep the plan's order. Each transfer stands behind its producer and before its consumer, on both
// ranks by one global order: the planned end of its producer, ties by the planned start of its consumer, then
// by stage and micro-batch. A compute of a sharded stage stands at its place on each of its ranks; what a
// rank of the consumer does not hold comes from the producer's rank that is quickest for it, ties the lowest,
// as Placement::transfer() counts it, of the micro-batch's own bytes where it has some. Running a projection
// of one global order cannot deadlock; deadlock.h checks it again without trusting this argument, and a
// program that fails is never returned.

#include <filesystem>
#include <string>
#include <string_view>

#include "plugin/lowering/program.h"
#include "search/placement/placement_toml.h"
#include "search/plan/plan.h"

namespace ostinato {

/// `plan` must be a valid plan of `placement` (checker.h). Throws InputError for a placement that cannot be
/// enforced (stage_graph.h), or a plan that contradicts the placement.
/// O(steps log steps).
Program lower(const Plan& plan, const Placement& placement);

/// Reads both files, checks the plan with the independent checker, and lowers it; for at least
/// `micro_batches` (lengthen.h), 0: the plan's. Throws InputError with what is wrong and in which file.
Program lower_files(const std::filesystem::path& plan_path, const std::filesystem::path& placement_path,
                    int micro_batches = 0);

/// Lowers a placement's plans step by step, from their texts: for unequal micro-batches, say.
//
//   const StepPlacement steps(toml, "placement.toml");
//   Program program = steps.lower(plan_json);
class StepPlacement {
 public:
  /// From the text of a placement; `name` stands in messages for its file. Throws InputError with that and
  /// the line.
  StepPlacement(std::string_view text, const std::string& name);

  /// As lower_files().
  Program lower(const std::string& plan_json) const;

 private:
  PlacementFile file_;
  std::string name_;
};

}  // namespace ostinato
