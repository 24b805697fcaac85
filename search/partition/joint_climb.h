// SPDX-License-Identifier: Apache-2.0
#pragma once
// Local search over partitions: from a candidate that has a plan, cuts, devices and recomputation of its
// stages move (joint_moves.h) while that makes the schedule shorter. A neighbour is judged first by what its
// busiest device takes, then by the bounds of its placement, then by a short search. Private to
// search/partition.
//
//   if (std::optional<Candidate> better = climb(profile, options, candidate, until)) ...

#include <chrono>
#include <optional>
#include <random>

#include "search/partition/joint.h"

namespace ostinato::joint {

/// The best that was found, with the plan of a short search; nullopt where that is no shorter than `start`.
/// `start` has a plan, and its stages are runs of layers. The work is counted, not timed (one `part`-th of
/// the usual): the same input gives the same result, unless `until` or `options.search.stop` ends it.
std::optional<Candidate> climb(const Profile& profile, const JointOptions& options, const Candidate& start,
                               std::optional<std::chrono::steady_clock::time_point> until, int part = 1);

/// `start` (its stages are runs of layers) a few random moves away: placed and bounded, without a plan.
/// nullopt: that does not fit, or is not allowed.
std::optional<Candidate> shaken(const Profile& profile, const JointOptions& options, const Candidate& start,
                                std::mt19937& random);

}  // namespace ostinato::joint
