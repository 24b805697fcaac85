// SPDX-License-Identifier: Apache-2.0
#pragma once
// The page of `ostinato show --html`: the plan, what --against puts below it, and the step of --trace.
//
//   write_page({.file = "plan.html", .against = {"1f1b"}}, "plan.json", plan, placement);

#include <string>
#include <vector>

#include "search/placement/model_facts.h"
#include "search/plan/plan.h"

namespace ostinato::cli {

struct PageRequest {
  std::string file = {};                     ///< to write; empty: no page
  std::vector<std::string> against = {};     ///< plan files, or names of schedules
  std::vector<std::string> placements = {};  ///< more files, for those of `against`
  std::string trace = {};                    ///< folder of a measured step; empty: none
  ModelFacts model = {};                     ///< of the plan's placement
};

/// What the page is read from, beside the plan. Throws InputError where a trace or a placement is missing.
std::vector<std::string> files_of(const PageRequest& asked);

/// Returns why schedules of `against` are missing: the placement has none of that name. Throws UsageError
/// where nothing is called like one of `against`, and InputError where a file is wrong or the trace is of
/// another plan. `path`: the file of `plan`.
std::vector<std::string> write_page(const PageRequest& asked, const std::string& path, const Plan& plan,
                                    const Placement& placement);

}  // namespace ostinato::cli
