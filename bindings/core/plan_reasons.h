// SPDX-License-Identifier: Apache-2.0
#pragma once
// Why `ostinato plan` chose its plan, in sentences: what is gained over the usual orders, what limits it,
// what it needs, and what more time or other devices would change.

#include <cstddef>
#include <string>

#include "bindings/core/baselines.h"
#include "search/partition/joint.h"

namespace ostinato::core {

/// Candidates that might have become the shortest in more time: not tried, or cut by the limit above their
/// bound.
std::size_t cut_candidates(const JointChoice& choice);

/// More time may find a shorter plan. False: no limit had a say, and without one the plan is the same.
bool is_cut(const JointChoice& choice);

/// "1.250", how often `value` holds `best`; "" where there is no best.
std::string as_ratio(Nanoseconds value, Nanoseconds best);

/// Of the device that needs most, the optimizer's step included. The candidate has a plan.
Bytes most_memory_of(const Candidate& candidate, const Profile& profile);

/// The layer that no plan gets past, and what would end that; "" where all layers can be shared out.
std::string limit_text(const JointChoice& choice, const Baselines& base, const Profile& profile);

/// What the plan needs where that is over a tenth more memory than what it is compared with; "" elsewhere.
std::string memory_text(const JointChoice& choice, const Baselines& base, const Profile& profile);

/// All of it: lines that say what is gained, and why the winner was taken.
std::string reason_text(const JointChoice& choice, const Baselines& base, const Profile& profile);

}  // namespace ostinato::core
