// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan in a few lines, beside the schedules that have names.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "search/files/json.h"
#include "search/named/references.h"
#include "search/placement/placement_toml.h"
#include "search/plan/plan.h"
#include "search/portfolio/search_options.h"
#include "search/profile/profile.h"

namespace ostinato::core {

/// Lines for people: objective, bound, 1F1B, period, memory. `seconds` < 0: nothing was searched.
/// `facts`: what the end of a step takes, where the placement's file says it.
/// `until`: when the time limit is over, after which no more schedules that have names are computed.
using Until = std::optional<std::chrono::steady_clock::time_point>;
std::string summary(const Plan& plan, const Placement& placement, double seconds,
                    const ModelFacts& facts = {}, const Until& until = {});

/// A line below it, where a plan was made from times that are not well known (profile_noise.h); else "".
std::string times_line(const Profile& profile);

/// The same for programs: no line of it depends on how it is printed.
Json summary_json(const Plan& plan, const Placement& placement, double seconds, const ModelFacts& facts = {},
                  const Until& until = {});

/// What the step takes with the optimizer's; nullopt: not known, or the plan is for another objective.
std::optional<Nanoseconds> step_with_optimizer(const Plan& plan, const Placement& placement,
                                               const ModelFacts& facts);

/// By device, what it holds at most: `peaks` of a schedule, or what is there at the end of a training step.
std::vector<Bytes> peaks_with_step(std::vector<Bytes> peaks, const Placement& placement,
                                   const std::vector<Bytes>& step_memory);

/// What holds up the makespan, a sentence a line (simulate.h, shared_cores.h); of a plan with sizes, too.
std::vector<std::string> explained(const Plan& plan, const Placement& placement);

/// What each technique cost and brought, a row each in the order in which they ran.
std::string contributions_text(const std::vector<Contribution>& contributions);
Json contributions_json(const std::vector<Contribution>& contributions);

/// Where the time of the device that works most goes, and how much of its waiting no plan avoids. The plan's
/// objective is the makespan.
std::string waiting_text(const Plan& plan, const Placement& placement);
Json waiting_json(const Plan& plan, const Placement& placement);

/// "2.5 %" from the bound to the value; "0 %" where they are equal.
std::string gap(Nanoseconds value, Nanoseconds bound);

}  // namespace ostinato::core
