// SPDX-License-Identifier: Apache-2.0
#include "bindings/core/partitioned.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "bindings/core/plan_summary.h"
#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/files/wrapped.h"
#include "search/partition/branches.h"
#include "search/partition/chain.h"
#include "search/partition/stages.h"
#include "search/placement/lanes.h"
#include "search/placement/placement_toml.h"
#include "search/placement/quantity.h"
#include "search/profile/profile_noise.h"

namespace ostinato::core {
namespace {

/// "0 to 3", or "0, 2, 5".
std::string layers_text(const Layers& layers) {
  if (layers.runs().size() == 1) return fmt::format("{:>3} to {:>3}", layers.front(), layers.back());
  return fmt::format("{}", fmt::join(layers, ", "));
}

/// "s0   on d0   layers 0 to 3   forward 1 ms   backward 2 ms"; of an inference without the last.
std::string stage_lines(const Placement& placement, const std::vector<Stage>& stages) {
  std::string text;
  const bool trains = std::any_of(placement.blocks.begin(), placement.blocks.end(),
                                  [](const Block& block) { return block.kind != Kind::forward; });
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const std::string name = fmt::format("s{}", s);
    Nanoseconds forward = 0;
    Nanoseconds backward = 0;
    for (const Block& block : placement.blocks) {
      if (block.stage == name) (block.kind == Kind::forward ? forward : backward) += block.time;
    }
    const std::string where = stages[s].sharded() ? "all" : placement.devices[stages[s].devices.front()].name;
    text += fmt::format("  {:<5} on {:<6} layers {}   forward {:>10}", name, where,
                        layers_text(stages[s].layers), format_time(forward));
    if (trains) text += fmt::format("   backward {:>10}", format_time(backward));
    text += stages[s].recompute ? "   recomputes\n" : "\n";
  }
  return text;
}

Json stages_json(const std::vector<Stage>& stages) {
  Json list = Json::array();
  for (std::size_t s = 0; s < stages.size(); ++s) {
    list.push_back({{"name", fmt::format("s{}", s)},
                    {"layers", std::vector<int>(stages[s].layers.begin(), stages[s].layers.end())},
                    {"devices", stages[s].devices},
                    {"recompute", stages[s].recompute}});
  }
  return list;
}

/// What the bound of the busiest device holds for, where that is not every way to cut.
std::string bound_scope(const StageCuts& cuts, const PartitionOptions& options, bool over_graph,
                        const Restrictions& restrictions) {
  const bool keeps_together = std::ranges::any_of(restrictions, [](const Restriction& one) {
    return one.rule == Rule::together || one.rule == Rule::one_stage;
  });
  const bool unlike =
      cluster_of(options).kinds.size() > 1 ||
      std::ranges::any_of(restrictions, [](const Restriction& one) { return one.device >= 0; });
  std::vector<std::string> scope;
  const int most = std::min<int>(options.micro_batches, static_cast<int>(cuts.stages.size()));
  if (cuts.in_flight < most) scope.push_back(counted(cuts.in_flight, "micro-batch") + " in flight");
  if (over_graph) scope.emplace_back("connected stages");
  if (unlike && (over_graph || options.chunks > 1)) scope.emplace_back("devices in this order");
  if (keeps_together) scope.emplace_back("stages that keep layers together");
  if (cuts.spread) scope.emplace_back("stages that each have a layer that every device needs");
  return fmt::format("{}", fmt::join(scope, ", "));
}

std::string proof(const StageCuts& cuts, const std::string& scope) {
  std::string text = cuts.exact() ? "optimal (proved)"
                                  : fmt::format("proven bound {}, gap {}", format_time(cuts.lower_bound),
                                                gap(cuts.busiest, cuts.lower_bound));
  return scope.empty() ? text : text + " of " + scope;
}

Json whole_json(const std::vector<WholeBackward>& whole) {
  Json list = Json::array();
  for (const WholeBackward& one : whole) list.push_back({{"stage", one.stage}, {"layers", one.layers}});
  return list;
}

}  // namespace

Partitioned partition_profile(const Profile& profile, const PartitionOptions& options, bool over_graph) {
  Partitioned cut;
  cut.options = options;
  cut.cuts = over_graph ? cut_graph(profile, options) : cut_chain(profile, options);
  const auto devices = static_cast<int>(cluster_of(options).devices.size());
  if (const Restriction* broken =
          first_broken(profile.restrictions, cut.cuts.stages, devices, options.split_backward))
    throw InputError(
        "", 0, fmt::format("the profile's 'restrictions' forbid this placement: {}", words_of(*broken)));
  cut.placement = place_stages(profile, options, cut.cuts.stages);
  const ModelFacts facts = facts_of(profile, options, cut.cuts.stages);
  check_memory(facts, cut.placement, options.micro_batches);
  cut.text = format_placement(cut.placement) + format_model(facts);
  cut.scope = bound_scope(cut.cuts, options, over_graph, profile.restrictions);
  return cut;
}

std::string partition_text(const Partitioned& cut) {
  std::size_t layers = 0;
  for (const Stage& stage : cut.cuts.stages) layers += stage.layers.size();
  return fmt::format("{}: {} in {} on {}\n", cut.placement.name, counted(layers, "layer"),
                     counted(cut.cuts.stages.size(), "stage"),
                     counted(count_without_lanes(cut.placement), "device")) +
         stage_lines(cut.placement, cut.cuts.stages) +
         fmt::format("  busiest device {} per micro-batch, {}\n", format_time(cut.cuts.busiest),
                     proof(cut.cuts, cut.scope));
}

Json partition_json(const Partitioned& cut, const Profile& profile) {
  Json object = {{"busiest", cut.cuts.busiest},
                 {"lower_bound", cut.cuts.lower_bound},
                 {"lower_bound_of", cut.scope},
                 {"in_flight", cut.cuts.in_flight},
                 {"stages", stages_json(cut.cuts.stages)},
                 {"whole_backwards", whole_json(whole_backwards(profile, cut.options, cut.cuts.stages))}};
  if (const std::string noise = noise_of(profile); !noise.empty()) object["noise"] = noise;
  return object;
}

std::string whole_backward_lines(const Profile& profile, const PartitionOptions& options,
                                 const std::vector<Stage>& stages) {
  std::string text;
  for (const WholeBackward& whole : whole_backwards(profile, options, stages)) {
    std::vector<std::string> names;
    for (const int l : whole.layers) names.push_back(profile.layers[l].name);
    text +=
        wrapped(fmt::format("  the backward of s{} stays whole: the profile has no split backward of {}\n",
                            whole.stage, fmt::join(names, ", ")),
                4);
  }
  return text;
}

}  // namespace ostinato::core
