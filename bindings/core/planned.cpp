// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/planned.h"

#include "bindings/core/degree_table.h"
#include "bindings/core/plan_summary.h"
#include "search/files/sha256.h"
#include "search/partition/stages.h"
#include "search/placement/placement_toml.h"
#include "search/profile/profile_noise.h"

namespace ostinato::core {

Planned plan_profile(const Profile& profile, const JointOptions& options, const Searcher& searcher) {
  Planned planned;
  DegreeChoice degrees = choose_degree(profile, options, searcher);
  const PartitionOptions partition = degrees.best().options.partition;
  planned.choice = *degrees.best().choice;
  planned.degree = degrees.chosen;
  if (options.replicas != 1) planned.degrees = std::move(degrees.degrees);
  planned.base = baselines(profile, partition, options.search.objective);
  const Candidate& best = planned.best();
  planned.facts = facts_of(profile, best.options, best.cuts->stages);
  planned.placement_text = format_placement(*best.placement) + format_model(planned.facts);
  planned.plan = *best.plan;
  planned.plan.placement_sha256 = sha256(planned.placement_text);
  planned.plan.baselines = kept(planned.base);
  if (cut_candidates(planned.choice) == 0) planned.plan.search.cut_by_limit = false;  // all is proved
  for (const Candidate& candidate : planned.choice.candidates) planned.seconds += candidate.seconds;
  return planned;
}

std::string planned_text(const Planned& planned, const Profile& profile, bool every) {
  const std::string degrees =
      planned.degrees.empty() ? "" : degrees_text(planned.degrees, planned.degree) + "\n";
  return degrees + choice_text(planned.choice, planned.base, profile, every) + "\n" +
         summary(planned.plan, *planned.best().placement, planned.seconds, planned.facts);
}

Json planned_json(const Planned& planned, const Profile& profile) {
  Json object = {{"chosen", planned.best().name}};
  object.update(summary_json(planned.plan, *planned.best().placement, planned.seconds, planned.facts));
  object.update(choice_json(planned.choice, planned.base));
  if (!planned.degrees.empty()) object["degrees"] = degrees_json(planned.degrees);
  if (const std::string noise = noise_of(profile); !noise.empty()) object["noise"] = noise;
  return object;
}

}  // namespace ostinato::core
