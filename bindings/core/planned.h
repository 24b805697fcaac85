// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `ostinato plan` makes of a profile: a placement and a plan, and why they were chosen.
//
//   Options options({"plan", "partition", "search"});
//   const JointOptions wanted = joint_options(options, on_devices(4, "40GiB"), 8, profile);
//   const Planned planned = plan_profile({{&profile, wanted}}, {});
//   write_file("placement.toml", planned.placement_text);
//   write_file("plan.json", format_plan(planned.plan, *planned.best().placement));

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/core/baselines.h"
#include "bindings/core/plan_summary.h"
#include "search/files/json.h"
#include "search/partition/degrees.h"
#include "search/placement/placement_toml.h"

namespace ostinato::core {

struct Planned {
  std::shared_ptr<const Profile> profile;  ///< Degree::profile of the one that was chosen
  JointChoice choice;                      ///< of one pipeline
  std::vector<Degree> degrees;             ///< where replicas or slices were asked for
  std::size_t degree = 0;                  ///< the one that was chosen
  Baselines base;
  Plan plan;                   ///< the winner's, of the placement file below
  std::string placement_text;  ///< with its model
  ModelFacts facts;
  double seconds = 0;  ///< that it took, as a time limit counts
  bool cut = false;    ///< a time limit or a stop ended one of them, and more time may find a shorter plan
  /// If the step has its own sizes (plan_sizes()): candidates, and the time that each's plan takes.
  std::vector<std::pair<std::size_t, Nanoseconds>> of_sizes;

  const Candidate& best() const { return choice.candidates[choice.winner]; }
};

/// Throws what choose_degree() throws.
Planned plan_profile(const std::vector<SlicedProfile>& profiles, const Searcher& searcher);

/// Fills in what follows from profile, winner and plan.
void describe(Planned& planned);

/// Where replicas or slices were asked for, their table first. The table of the best candidates, or of
/// `every` one, why one was chosen, and the plan in a few lines.
std::string planned_text(const Planned& planned, bool every = false, const Until& until = {});
Json planned_json(const Planned& planned, const Until& until = {});

}  // namespace ostinato::core
