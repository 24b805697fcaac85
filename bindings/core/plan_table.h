// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `ostinato plan` says of its choice: every candidate with its bound, objective and memory, or why it
// was dropped, beside what the script runs now and 1F1B on the best stages.

#include <string>
#include <vector>

#include "bindings/core/baselines.h"
#include "search/files/json.h"
#include "search/partition/joint.h"

namespace ostinato::core {

/// What restrictions of the options left out, and why, a line each. Where candidates of that kind were
/// bounded, with the least of these bounds.
std::vector<std::string> not_tried(const JointChoice& choice);

/// The table, what was not tried, and a sentence that says why the winner won.
/// `every`: all candidates, else the best where they are many.
std::string choice_text(const JointChoice& choice, const Baselines& base, const Profile& profile,
                        bool every = false);

/// Its members "candidates", "memory", "limit" and "baselines".
Json choice_json(const JointChoice& choice, const Baselines& base, const Profile& profile);

}  // namespace ostinato::core
