// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `ostinato plan` says of its choice: every candidate with its bound, objective and memory, or why it
// was dropped, beside 1F1B on the stages that nobody and somebody balanced.

#include <optional>
#include <string>

#include "search/files/json.h"
#include "search/partition/joint.h"

namespace ostinato::core {

/// 1F1B (of forwards alone: one micro-batch after the other) on a placement that was not chosen for it.
struct Baseline {
  Nanoseconds value = 0;  ///< of the objective
  Nanoseconds makespan = 0;
  bool fits = false;  ///< the memory
};

struct Baselines {
  std::optional<Baseline> even;      ///< as many layers on every device; absent: fewer layers than devices
  std::optional<Baseline> balanced;  ///< the best partition into one chunk per device; absent: none fits
};

Baselines baselines(const Profile& profile, const PartitionOptions& options, Objective objective);

/// The table, and a sentence that says why the winner won.
std::string choice_text(const JointChoice& choice, const Baselines& base, const Profile& profile);

/// Its members "candidates" and "baselines".
Json choice_json(const JointChoice& choice, const Baselines& base);

}  // namespace ostinato::core
