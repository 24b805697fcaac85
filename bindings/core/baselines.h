// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a plan is compared with: the run that the user has now, and 1F1B on the best stages.
//
//   const Baselines base = baselines(profile, options, Objective::makespan, choice, stop);
//   for (const UsualOrder& one : all_of(base)) fmt::print("{}: {}\n", in_words(one), value_of(one));

#include <functional>
#include <optional>
#include <vector>

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
  std::optional<UsualOrder> balanced;  ///< the best partition into one chunk per device; absent: none found
};

/// Of the candidates of this choice where they are placed, else made until `stop` says so: what the time left
/// untried, the plan is not compared with.
Baselines baselines(const Profile& profile, const PartitionOptions& options, Objective objective,
                    const JointChoice& choice, const std::function<bool()>& stop);

/// Those that are there, in the order in which texts name them: the run of the user first.
std::vector<UsualOrder> all_of(const Baselines& base);

/// The same, as a plan keeps them.
std::vector<Baseline> kept(const Baselines& base);

/// What is compared with Candidate::value().
Nanoseconds value_of(const Baseline& baseline);

}  // namespace ostinato::core
