// SPDX-License-Identifier: Apache-2.0
#pragma once
// A known schedule beside a plan, where a user asks what the usual one would take.
//
//   NamedPlan usual = named_plan("1f1b", plan, placement);   // of the same micro-batches
//   usual.name                                 // "interleaved-1f1b" on several chunks per device

#include <string>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato::cli {

struct NamedPlan {
  std::string name;
  Plan plan;
};

/// Whether there is a schedule of that name, here or elsewhere.
bool is_schedule(const std::string& name);

/// "gpipe, 1f1b, ...", for messages.
std::string schedule_names();

/// The schedule of that name for the placement of `like`. 1F1B on several chunks per device, where it has no
/// order that runs, is interleaved 1F1B. Throws UsageError, which names --against, where there is none.
NamedPlan named_plan(const std::string& name, const Plan& like, const Placement& placement);

}  // namespace ostinato::cli
