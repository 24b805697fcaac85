// SPDX-License-Identifier: Apache-2.0
#include "search/profile/restrictions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "search/files/counted.h"

namespace ostinato {
namespace {

bool has_fixed_ends(const std::vector<Stage>& stages) {
  int last_layer = 0, first = std::numeric_limits<int>::max(), last = 0;
  for (const Stage& stage : stages) {
    if (!stage.layers.empty()) last_layer = std::max(last_layer, stage.layers.back());
    first = std::min(first, stage.devices.front());
    last = std::max(last, stage.devices.back());
  }
  return std::ranges::all_of(stages, [&](const Stage& stage) {
    return (!stage.layers.contains(0) || stage.devices.front() == first) &&
           (!stage.layers.contains(last_layer) || stage.devices.back() == last);
  });
}

/// Where the plan runs the model in two directions, a layer has several devices.
std::set<int> devices_of(const std::vector<Stage>& stages, int layer) {
  std::set<int> devices;
  for (const Stage& stage : stages)
    if (stage.layers.contains(layer)) devices.insert(stage.devices.begin(), stage.devices.end());
  return devices;
}

bool are_together(const std::vector<Stage>& stages, const Restriction& one) {
  const std::set<int> devices =
      one.device < 0 ? devices_of(stages, one.layers.front()) : std::set{one.device};
  return std::ranges::all_of(one.layers, [&](int l) { return devices_of(stages, l) == devices; });
}

bool are_whole(const std::vector<Stage>& stages, const std::vector<int>& layers) {
  return std::ranges::all_of(stages, [&](const Stage& stage) {
    const auto here = [&](int l) { return stage.layers.contains(l); };
    return std::ranges::none_of(layers, here) || std::ranges::all_of(layers, here);
  });
}

bool are_spread(const std::vector<Stage>& stages, const std::vector<int>& layers, int devices) {
  std::set<int> have;
  for (const Stage& stage : stages)
    if (std::ranges::any_of(layers, [&](int l) { return stage.layers.contains(l); }))
      have.insert(stage.devices.begin(), stage.devices.end());
  return static_cast<int>(have.size()) == devices;
}

std::string layers_text(const std::vector<int>& layers) {
  return fmt::format("{} {}", layers.size() == 1 ? "layer" : "layers", fmt::join(layers, ", "));
}

bool obeys(const Restriction& restriction, const std::vector<Stage>& stages, int devices, bool split) {
  switch (restriction.rule) {
    case Rule::most_chunks: {
      std::map<int, int> chunks;  // by device
      return std::ranges::all_of(stages, [&](const Stage& stage) {
        return stage.sharded() || ++chunks[stage.devices.front()] <= restriction.chunks;
      });
    }
    case Rule::whole_backwards:
      return !split;
    case Rule::no_shards:
      return std::ranges::none_of(stages, &Stage::sharded);
    case Rule::fixed_ends:
      return has_fixed_ends(stages);
    case Rule::together:
      return are_together(stages, restriction);
    case Rule::one_stage:
      return are_whole(stages, restriction.layers);
    case Rule::spread:
      return are_spread(stages, restriction.layers, devices);
  }
  return true;
}

}  // namespace

std::string_view to_string(Rule rule) {
  switch (rule) {
    case Rule::most_chunks:
      return "most_chunks";
    case Rule::whole_backwards:
      return "whole_backwards";
    case Rule::no_shards:
      return "no_shards";
    case Rule::fixed_ends:
      return "fixed_ends";
    case Rule::together:
      return "together";
    case Rule::one_stage:
      return "one_stage";
    case Rule::spread:
      return "spread";
  }
  return "";
}

const Restriction* find_rule(const Restrictions& restrictions, Rule rule) {
  const Restriction* found = nullptr;
  for (const Restriction& one : restrictions)
    if (one.rule == rule && (found == nullptr || one.chunks < found->chunks)) found = &one;
  return found;
}

int most_chunks(const Restrictions& restrictions) {
  const Restriction* found = find_rule(restrictions, Rule::most_chunks);
  return found == nullptr ? 0 : found->chunks;
}

const Restriction* first_broken(const Restrictions& restrictions, const std::vector<Stage>& stages,
                                int devices, bool split) {
  const auto broken = std::ranges::find_if(
      restrictions, [&](const Restriction& one) { return !obeys(one, stages, devices, split); });
  return broken == restrictions.end() ? nullptr : &*broken;
}

std::string words_of(const Restriction& restriction) {
  std::string what;
  switch (restriction.rule) {
    case Rule::most_chunks:
      what = "more than " + counted(restriction.chunks, "stage") + " per device";
      break;
    case Rule::whole_backwards:
      what = "split backwards";
      break;
    case Rule::no_shards:
      what = "sharded layers";
      break;
    case Rule::fixed_ends:
      what = "inputs or loss not on the devices of 1F1B, as in waves";
      break;
    case Rule::together:
      what = fmt::format("{} on {}", layers_text(restriction.layers),
                         restriction.device < 0 ? "different devices"
                                                : fmt::format("a device other than {}", restriction.device));
      break;
    case Rule::one_stage:
      what = fmt::format("{} in different stages", layers_text(restriction.layers));
      break;
    case Rule::spread:
      what = fmt::format("a device with none of {}", layers_text(restriction.layers));
      break;
  }
  return fmt::format("{} ({})", what, restriction.reason);
}

std::string option_of(const Restriction& restriction) {
  switch (restriction.rule) {
    case Rule::most_chunks:
      return fmt::format("--max-chunks {}", restriction.chunks);
    case Rule::whole_backwards:
      return "--without split";
    case Rule::no_shards:
      return "--without shards";
    case Rule::fixed_ends:
      return "--fixed-ends";
    case Rule::together:
    case Rule::one_stage:
    case Rule::spread:
      return "";
  }
  return "";
}

}  // namespace ostinato
