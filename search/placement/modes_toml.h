// SPDX-License-Identifier: Apache-2.0
#pragma once
// `[[choices]]` of ostinato-placement/1: reading, checking and writing them.
//
//   [[choices]]
//   name = "s0"
//   modes = [
//     { name = "split" },                                               # the blocks as they are written
//     { name = "whole", blocks = [
//         { block = "s0.I", kind = "backward", time = 2, memory = -1 },
//         { block = "s0.W", absent = true } ] },
//   ]

#include <string>
#include <unordered_map>
#include <vector>

#include "search/files/units.h"
#include "search/files/value.h"
#include "search/placement/placement.h"

namespace ostinato {

/// What figures of a placement file mean, and where its blocks are.
struct ChoiceContext {
  const std::string& file;
  std::int64_t time_factor;                            ///< nanoseconds a unit
  std::int64_t memory_factor;                          ///< bytes a unit
  const std::unordered_map<std::string, int>& blocks;  ///< index by name
};

/// Throws InputError with file:line for a duplicate name, a first mode that changes something, another that
/// does not, an unknown block, a block in two choices or twice in a mode, a change that is none, and blocks
/// that could all be absent.
std::vector<Choice> read_choices(const Value& list, const ChoiceContext& context);

/// Appends the text that read_choices() reads back. Times and amounts must be multiples of the units.
void format_choices(std::string& text, const Placement& placement, const Unit& time, const Unit& memory);

/// `kind` of a block or a change. Throws InputError for an unknown one.
Kind parse_kind(const Fields& fields, const std::string& kind, const std::string& block);

}  // namespace ostinato
