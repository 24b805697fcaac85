// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `ostinato plan` says of its choice: every candidate with its bound, objective and memory, or why it
// was dropped, beside what the script runs now and 1F1B on the best stages.

#include <cstddef>
#include <string>
#include <vector>

#include "bindings/core/baselines.h"
#include "search/files/json.h"
#include "search/partition/joint.h"

namespace ostinato::core {

/// Candidates that might have become the shortest in more time: not tried, or cut by the limit above their
/// bound.
std::size_t cut_candidates(const JointChoice& choice);

/// More time may find a shorter plan. False: no limit had a say, and without one the plan is the same.
bool is_cut(const JointChoice& choice);

/// What restrictions of the options left out, and why, a line each. Where candidates of that kind were
/// bounded, with the least of these bounds.
std::vector<std::string> not_tried(const JointChoice& choice);

/// The table, what was not tried, and a sentence that says why the winner won.
/// `every`: all candidates, else the best where they are many.
std::string choice_text(const JointChoice& choice, const Baselines& base, const Profile& profile,
                        bool every = false);

/// The layer that no plan gets past, and what would end that; "" where all layers can be shared out.
std::string limit_text(const JointChoice& choice, const Baselines& base, const Profile& profile);

/// What the plan needs where that is over a tenth more memory than what it is compared with; "" elsewhere.
std::string memory_text(const JointChoice& choice, const Baselines& base, const Profile& profile);

/// Its members "candidates", "memory", "limit" and "baselines".
Json choice_json(const JointChoice& choice, const Baselines& base, const Profile& profile);

}  // namespace ostinato::core
