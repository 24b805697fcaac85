// SPDX-License-Identifier: Apache-2.0
#pragma once
// How many pipelines run beside each other, chosen together with placement and schedule: pipeline x data.
//
//   JointOptions options{.partition = {.devices = 64}, .replicas = kAnyReplicas};
//   options.search.micro_batches = options.partition.micro_batches = 128;   // of a step, over all replicas
//   DegreeChoice choice = choose_degree(profile, options);
//   choice.best().pipeline;                                    // 8, say: 8 pipelines of 8 devices
//
// Each replica runs the same plan on its share of the micro-batches. At the end of a step every device sums
// its gradients with those that hold the same layers, by a ring over the slowest link between them
// (stage_cost.h has the formula), as DeepSpeed's pipeline engine does: after the last backward. Ranks are
// numbered as in its PipeDataParallelTopology: stage s of replica k is rank s * replicas + k.

#include <optional>
#include <string>
#include <vector>

#include "search/partition/joint.h"

namespace ostinato {

struct Degree {
  int pipeline = 1;  ///< devices of each pipeline
  int replicas = 1;
  JointOptions options;  ///< of one replica
  std::optional<JointChoice> choice;
  Nanoseconds all_reduce = 0;  ///< on the device where it takes longest
  std::string why_not;         ///< where there is no choice

  const Candidate& winner() const { return choice->candidates[choice->winner]; }
  /// Its plan's objective and what follows it; only where there is a choice.
  Nanoseconds step() const { return winner().value() + all_reduce; }
};

struct DegreeChoice {
  std::vector<Degree> degrees;  ///< the most replicas first
  std::size_t chosen = 0;

  Degree& best() { return degrees[chosen]; }
  const Degree& best() const { return degrees[chosen]; }
};

/// Tries `options.replicas`, or with kAnyReplicas every number that divides devices and micro-batches. The
/// time limit is that of all together. Throws what choose_plan() throws, of the last that was tried where
/// none has a plan, and InputError where the numbers do not divide, or devices of several kinds would make
/// replicas that differ.
DegreeChoice choose_degree(const Profile& profile, const JointOptions& options,
                           const Searcher& searcher = {});

}  // namespace ostinato
