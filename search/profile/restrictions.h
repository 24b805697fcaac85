// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the model and the run allow of a plan, each with the reason: known before the search, kept in the
// profile (docs/profile-format.md), obeyed by `partition` and `plan`, and checked again when a run starts, by
// obeys().
//
//   Restrictions allowed = profile.restrictions;
//   allowed.push_back({Rule::most_chunks, "--max-chunks 2", 2});       // more of them allow less
//   if (const Restriction* broken = first_broken(allowed, stages, devices, split)) ... words_of(*broken)

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "search/placement/stage.h"

namespace ostinato {

enum class Rule {
  most_chunks,      ///< a device has at most this many stages that it does not share
  whole_backwards,  ///< no backward is split
  no_shards,        ///< no stage lies on several devices
  fixed_ends,       ///< layer 0 on the first device that is used, the last layer on the last one
  together,         ///< these layers on the same devices
  one_stage,        ///< these layers, neighbours, in one stage: what passes between them cannot leave it
  spread,           ///< every device has one of these layers
};

inline constexpr std::array kRules = {Rule::most_chunks, Rule::whole_backwards, Rule::no_shards,
                                      Rule::fixed_ends,  Rule::together,        Rule::one_stage,
                                      Rule::spread};

std::string_view to_string(Rule rule);

struct Restriction {
  Rule rule = Rule::fixed_ends;
  std::string reason;            ///< "Net has its own forward()"
  int chunks = 0;                ///< of most_chunks
  std::vector<int> layers = {};  ///< of together, one_stage and spread; rising
  int device = -1;               ///< of together: which; -1: any

  friend bool operator==(const Restriction&, const Restriction&) = default;
};

/// All of them hold.
using Restrictions = std::vector<Restriction>;

/// The first of that rule (of several most_chunks the one that allows least), or null.
const Restriction* find_rule(const Restrictions& restrictions, Rule rule);

/// 0: as many as pay.
int most_chunks(const Restrictions& restrictions);

/// The first that these stages, all of one plan on `devices`, break; or null. `split`: some backward is
/// split. O(restrictions * (stages + layers)).
const Restriction* first_broken(const Restrictions& restrictions, const std::vector<Stage>& stages,
                                int devices, bool split);

/// What it forbids: "more than 1 stage per device (Net has its own forward())".
std::string words_of(const Restriction& restriction);

/// How `ostinato plan` is told to obey it; "" where no option says that.
std::string option_of(const Restriction& restriction);

}  // namespace ostinato
