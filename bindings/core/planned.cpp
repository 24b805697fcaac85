// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/planned.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "bindings/core/degree_table.h"
#include "bindings/core/plan_reasons.h"
#include "bindings/core/plan_summary.h"
#include "bindings/core/plan_table.h"
#include "search/files/sha256.h"
#include "search/partition/stages.h"
#include "search/placement/placement_toml.h"
#include "search/placement/quantity.h"
#include "search/profile/profile_noise.h"

namespace ostinato::core {

void describe(Planned& planned) {
  const Candidate& best = planned.best();
  planned.facts = facts_of(*planned.profile, best.options, best.cuts->stages);
  planned.placement_text = format_placement(*best.placement) + format_model(planned.facts);
  planned.plan.placement_sha256 = sha256(planned.placement_text);
}

Planned plan_profile(const std::vector<SlicedProfile>& profiles, const Searcher& searcher) {
  const JointOptions& options = profiles.front().options;
  const auto began = std::chrono::steady_clock::now();
  Planned planned;
  DegreeChoice degrees = choose_degree(profiles, searcher);
  planned.profile = degrees.best().profile;
  const PartitionOptions partition = degrees.best().options.partition;
  planned.choice = *degrees.best().choice;
  const bool cut = std::any_of(degrees.degrees.begin(), degrees.degrees.end(),
                               [](const Degree& d) { return d.choice && is_cut(*d.choice); });
  planned.degree = degrees.chosen;
  if (!options.one_pipeline()) planned.degrees = std::move(degrees.degrees);
  planned.base = baselines(*planned.profile, partition, options.search.objective, planned.choice,
                           [&] { return is_over(options.search, std::chrono::steady_clock::now() - began); });
  planned.plan = *planned.best().plan;
  describe(planned);
  planned.plan.baselines = kept(planned.base);
  planned.plan.search.cut_by_limit = cut;
  planned.cut = planned.choice.interrupted || cut;
  planned.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return planned;
}

namespace {

/// The shortest first.
std::vector<std::pair<std::size_t, Nanoseconds>> sorted_by_sizes(const Planned& planned) {
  auto list = planned.of_sizes;
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& a, const auto& b) { return a.second < b.second; });
  return list;
}

std::string sizes_text(const Planned& planned, bool every) {
  auto list = sorted_by_sizes(planned);
  const std::size_t all = list.size();
  if (!every) list.resize(std::min<std::size_t>(all, 10));
  std::string text = "makespan of the best order found for these sizes, by placement\n";
  for (const auto& [candidate, value] : list)
    text += fmt::format("{:1} {:>12}  {}\n", candidate == planned.choice.winner ? "*" : "",
                        format_time(value), planned.choice.candidates[candidate].name);
  if (list.size() < all) text += fmt::format("  {} more take longer\n", all - list.size());
  return text + "\n";
}

}  // namespace

std::string planned_text(const Planned& planned, bool every, const Until& until) {
  const Profile& profile = *planned.profile;
  if (!planned.of_sizes.empty())
    return sizes_text(planned, every) +
           summary(planned.plan, *planned.best().placement, planned.seconds, planned.facts, until) +
           times_line(profile);
  const std::string degrees =
      planned.degrees.empty() ? "" : degrees_text(planned.degrees, planned.degree) + "\n";
  return degrees + choice_text(planned.choice, planned.base, profile, every) + "\n" +
         summary(planned.plan, *planned.best().placement, planned.seconds, planned.facts, until) +
         times_line(profile);
}

Json planned_json(const Planned& planned, const Until& until) {
  const Profile& profile = *planned.profile;
  Json object = {{"chosen", planned.best().name}};
  object.update(summary_json(planned.plan, *planned.best().placement, planned.seconds, planned.facts, until));
  if (planned.of_sizes.empty()) {
    object.update(choice_json(planned.choice, planned.base, profile));
  } else {
    Json list = Json::array();
    for (const auto& [candidate, value] : sorted_by_sizes(planned))
      list.push_back({{"name", planned.choice.candidates[candidate].name}, {"makespan", value}});
    object["candidates"] = std::move(list);
  }
  if (!planned.degrees.empty()) object["degrees"] = degrees_json(planned.degrees);
  if (const std::string noise = noise_of(profile); !noise.empty()) object["noise"] = noise;
  if (const std::string trust = trust_of(profile); !trust.empty()) object["proved_for_times"] = trust;
  return object;
}

}  // namespace ostinato::core
