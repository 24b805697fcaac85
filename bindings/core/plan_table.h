// SPDX-License-Identifier: Apache-2.0
#pragma once
// What `ostinato plan` says of its choice: every candidate with its bound, objective and memory, or why it
// was dropped, beside what the script runs now and 1F1B on the best stages.

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "search/files/json.h"
#include "search/partition/joint.h"

namespace ostinato::core {

/// 1F1B (of forwards alone: one micro-batch after the other, "gpipe") on a placement that was not chosen for
/// it.
struct UsualOrder : Baseline {
  Bytes peak_memory = 0;  ///< of the device that needs most, the optimizer's step included
};

struct Baselines {
  std::optional<UsualOrder> yours;  ///< DeepSpeed's own partition, where the profile has one for the devices
  std::optional<UsualOrder> even;   ///< else as many layers on every device; absent: there are fewer
  std::optional<UsualOrder> balanced;  ///< the best partition into one chunk per device; absent: none fits
};

/// Those that are there, as a plan keeps them and texts name them: the run of the user first.
std::vector<Baseline> kept(const Baselines& base);

/// Of the candidates of this choice where they are placed, else made until `stop` says so: what the time left
/// untried, the plan is not compared with.
Baselines baselines(const Profile& profile, const PartitionOptions& options, Objective objective,
                    const JointChoice& choice, const std::function<bool()>& stop);

/// Candidates that might have become the shortest in more time: whose search the limit cut above its bound,
/// or that were not tried.
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

/// Its members "candidates", "limit" and "baselines".
Json choice_json(const JointChoice& choice, const Baselines& base, const Profile& profile);

}  // namespace ostinato::core
