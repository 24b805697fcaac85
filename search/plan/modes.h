// SPDX-License-Identifier: Apache-2.0
#pragma once
// Taking modes of the choices of a placement: whole or split backward, recompute or keep, offload or keep.
//
//   Placement p = read_placement("choices-4.toml").placement;
//   Placement q = with_modes(p, {{"s0", "recompute"}});     // what a plan with these modes runs
//
// A mode changes time, memory, workspace or kind of blocks, or leaves blocks out. docs/formats.md has the
// meaning, configs/choices-4.toml an example of each.

#include <string>
#include <vector>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato {

/// One mode for every choice of a placement: assignment[c] indexes choices[c].modes; 0 is as written.
using Assignment = std::vector<int>;

/// The placement that runs when these modes are taken: changed blocks changed, absent ones left out (edges to
/// them too), no choices left. Blocks keep their order. Asserts that the assignment has one mode per choice.
/// O(blocks + edges).
Placement with_modes(const Placement& placement, const Assignment& assignment);
Placement with_modes(const Placement& placement, const std::vector<TakenMode>& taken);

/// What the plan runs: the placement as it is written, with the modes that the plan takes.
Placement as_planned(const Placement& written, const Plan& plan);

/// By name and back: a choice that is not named takes its first mode, and a first mode is not named. Throws
/// InputError ("did you mean") for a choice or mode that the placement does not have, or a choice named
/// twice.
Assignment assignment_of(const Placement& placement, const std::vector<TakenMode>& taken);
std::vector<TakenMode> taken_modes(const Placement& placement, const Assignment& assignment);

/// Where each block of the placement stands among the blocks of with_modes(); -1: absent there.
std::vector<int> places_with_modes(const Placement& placement, const Assignment& assignment);

/// "s0 whole, s1 whole", cut after a few; "all as written" where nothing is changed.
std::string describe_modes(const std::vector<TakenMode>& taken);

}  // namespace ostinato
