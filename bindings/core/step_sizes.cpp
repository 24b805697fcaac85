// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/step_sizes.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <string>

#include "bindings/core/usage_error.h"
#include "search/files/error.h"
#include "search/partition/sized.h"
#include "search/simulate/simulate.h"
#include "search/unequal/with_sizes.h"

namespace ostinato::core {
namespace {

void check(const std::vector<SlicedProfile>& profiles) {
  const JointOptions& options = profiles.front().options;
  if (!options.one_pipeline()) throw UsageError("--sizes cannot be combined with --replicas or --slices");
  if (options.search.method != "auto" || options.search.objective != Objective::makespan)
    throw UsageError("--sizes cannot be combined with --method or --objective");
}

/// The order that was found for micro-batches of one size, where it is shorter and the memory holds it.
void try_order_of(const Plan& alike, const Placement& placement, Plan& plan) {
  try {
    Plan other = with_sizes(alike, placement, plan.sizes);
    if (other.makespan >= plan.makespan) return;
    plan.schedule = std::move(other.schedule);
    plan.makespan = other.makespan;
    plan.span = other.span;
    plan.peak_memory = std::move(other.peak_memory);
    plan.optimal.makespan = plan.makespan == plan.lower_bound.makespan;
    plan.search.method = alike.search.method;
  } catch (const InputError&) {  // too much memory
  }
}

/// The plan of a candidate's placement; nullopt where no order was found.
std::optional<Plan> plan_of(const Candidate& candidate, const Profile& profile, const BareSizes& sizes,
                            const UnequalOptions& unequal, std::string& why_not) {
  try {
    const Placement& placement = *candidate.placement;
    const std::vector<double> of_batches(sizes.sizes.begin(), sizes.sizes.end());
    const auto of = static_cast<double>(sizes.of);
    Plan plan = search_unequal(placement, sized(profile, placement, of_batches, of), unequal);
    if (candidate.plan && !unequal.keep_order) try_order_of(*candidate.plan, placement, plan);
    return plan;
  } catch (const InfeasibleError& error) {
    why_not = error.what();
  } catch (const UndecidedError& error) {
    why_not = error.what();
  }
  return std::nullopt;
}

}  // namespace

Planned plan_sizes(const std::vector<SlicedProfile>& profiles, const BareSizes& given,
                   const UnequalOptions& unequal, const Searcher& searcher) {
  check(profiles);
  const Profile& profile = *profiles.front().profile;
  BareSizes sizes = given;
  if (sizes.of == 0) sizes.of = profile.tokens;
  if (sizes.of == 0)
    throw InputError(
        "", 0,
        "the profile does not say the size of its micro-batch: put size = ... at the top of the sizes file");
  if (profile.sizes.size() > 1 && sizes.of != profile.tokens)
    throw InputError("", 0,
                     fmt::format("size = {} is given for the profile's micro-batch, but the profile was "
                                 "measured with {}: leave size out",
                                 sizes.of, profile.tokens));
  const auto began = std::chrono::steady_clock::now();
  Planned planned = plan_profile(profiles, searcher);
  const bool cut = planned.plan.search.cut_by_limit;
  Nanoseconds least = 0;
  std::optional<std::size_t> best;
  std::string why_not;
  const auto consider = [&](std::size_t c) {
    Candidate& candidate = planned.choice.candidates[c];
    if (!candidate.placement || candidate.infeasible) return;
    if (best && unequal.stop != nullptr && *unequal.stop) return;
    std::optional<Plan> plan = plan_of(candidate, profile, sizes, unequal, why_not);
    if (!plan) return;
    const Nanoseconds value = predicted_makespan(*plan, *candidate.placement);
    planned.of_sizes.emplace_back(c, value);
    if (best && value >= least) return;
    least = value;
    best = c;
    planned.plan = std::move(*plan);
  };
  const std::size_t usual = planned.choice.winner;
  consider(usual);
  for (std::size_t c = 0; c < planned.choice.candidates.size(); ++c)
    if (c != usual) consider(c);
  if (!best)
    throw UndecidedError("micro-batches of these sizes fit none of the placements tried: " + why_not);
  planned.choice.winner = *best;  // which may have no plan but that for these sizes
  planned.plan.search.cut_by_limit |= cut;
  planned.cut |= planned.plan.search.cut_by_limit;
  describe(planned);
  planned.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return planned;
}

}  // namespace ostinato::core
