// SPDX-License-Identifier: Apache-2.0
#include "search/plan/modes.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "search/files/value.h"

namespace ostinato {
namespace {

/// Index of the item of that name, or -1.
template <typename Items>
int find_named(const Items& items, const std::string& name) {
  const auto found = std::find_if(items.begin(), items.end(), [&](const auto& i) { return i.name == name; });
  return found == items.end() ? -1 : static_cast<int>(found - items.begin());
}

template <typename Items>
[[noreturn]] void refuse_unknown(const std::string& what, const std::string& name, const Items& items) {
  std::vector<std::string_view> names;
  for (const auto& item : items) names.push_back(item.name);
  throw InputError("", 0, what + in_quotes(name) + did_you_mean(name, names));
}

void change_block(Block& block, const BlockChange& change) {
  if (change.kind) block.kind = *change.kind;
  if (change.time) block.time = *change.time;
  if (change.memory) block.memory = *change.memory;
  if (change.workspace) block.workspace = *change.workspace;
}

/// Calls visit(change) for every change of the modes taken.
template <typename Visit>
void for_changes(const Placement& placement, const Assignment& assignment, Visit visit) {
  assert(assignment.size() == placement.choices.size());
  for (std::size_t c = 0; c < assignment.size(); ++c) {
    for (const BlockChange& change : placement.choices[c].modes[assignment[c]].changes) visit(change);
  }
}

}  // namespace

std::vector<int> places_with_modes(const Placement& placement, const Assignment& assignment) {
  std::vector<int> place(placement.blocks.size(), 0);
  for_changes(placement, assignment, [&](const BlockChange& change) {
    if (change.absent) place[change.block] = -1;
  });
  int next = 0;
  for (int& p : place) p = p < 0 ? -1 : next++;
  return place;
}

Placement with_modes(const Placement& placement, const Assignment& assignment) {
  Placement result = placement;
  result.choices.clear();
  for_changes(placement, assignment,
              [&](const BlockChange& change) { change_block(result.blocks[change.block], change); });
  const std::vector<int> place = places_with_modes(placement, assignment);
  if (std::find(place.begin(), place.end(), -1) == place.end()) return result;
  std::vector<Block> blocks;
  for (std::size_t b = 0; b < place.size(); ++b) {
    if (place[b] < 0) continue;
    Block& block = blocks.emplace_back(std::move(result.blocks[b]));
    std::erase_if(block.after, [&](const Dependency& input) { return place[input.block] < 0; });
    for (Dependency& input : block.after) input.block = place[input.block];
  }
  result.blocks = std::move(blocks);
  return result;
}

Placement with_modes(const Placement& placement, const std::vector<TakenMode>& taken) {
  return with_modes(placement, assignment_of(placement, taken));
}

Placement as_planned(const Placement& written, const Plan& plan) {
  return plan.modes ? with_modes(written, plan.modes->taken) : written;
}

Assignment assignment_of(const Placement& placement, const std::vector<TakenMode>& taken) {
  Assignment assignment(placement.choices.size(), -1);
  for (const TakenMode& t : taken) {
    const int c = find_named(placement.choices, t.choice);
    if (c < 0) refuse_unknown("the placement has no choice ", t.choice, placement.choices);
    if (assignment[c] >= 0) throw InputError("", 0, "choice " + in_quotes(t.choice) + " is taken twice");
    const auto& modes = placement.choices[c].modes;
    assignment[c] = find_named(modes, t.mode);
    if (assignment[c] < 0) refuse_unknown("choice " + in_quotes(t.choice) + " has no mode ", t.mode, modes);
  }
  std::replace(assignment.begin(), assignment.end(), -1, 0);
  return assignment;
}

std::vector<TakenMode> taken_modes(const Placement& placement, const Assignment& assignment) {
  std::vector<TakenMode> taken;
  for (std::size_t c = 0; c < assignment.size(); ++c) {
    if (assignment[c] == 0) continue;
    const Choice& choice = placement.choices[c];
    taken.push_back({choice.name, choice.modes[assignment[c]].name});
  }
  return taken;
}

std::string describe_modes(const std::vector<TakenMode>& taken) {
  constexpr std::size_t shown = 8;
  if (taken.empty()) return "all as written";
  std::string text;
  for (std::size_t i = 0; i < std::min(shown, taken.size()); ++i) {
    text += (i == 0 ? "" : ", ") + taken[i].choice + " " + taken[i].mode;
  }
  return taken.size() <= shown ? text : text + ", ... (" + std::to_string(taken.size()) + " in all)";
}

}  // namespace ostinato
