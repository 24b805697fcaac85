// SPDX-License-Identifier: Apache-2.0
#pragma once
// How many pipelines run beside each other, and over how many ranks their layers are sliced, chosen together
// with placement and schedule: pipeline x slices x data.
//
//   JointOptions options{.partition = {.devices = 64}, .replicas = kAnyReplicas};
//   options.search.micro_batches = options.partition.micro_batches = 128;   // of a step, over all replicas
//   DegreeChoice choice = choose_degree(profile, options);
//   choice.best().pipeline;                                    // 8, say: 8 pipelines of 8 devices
//
// Each replica runs the same plan on its share of the micro-batches, on the slowest link that any has between
// two stages; the ranks of all share the processors of their nodes (placement.h, Host). At the end of a step
// all devices that hold the same layers sum their gradients, by a ring over the slowest link between them
// (stage_cost.h has the formula), as DeepSpeed's pipeline engine does: after the last backward. Ranks are
// numbered as in its PipeModelDataParallelTopology: slice j of stage s of replica k is rank (s * replicas +
// k) * slices + j. What layers take in slices is measured: each number of slices has a profile.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "search/partition/joint.h"

namespace ostinato {

struct Degree {
  int pipeline = 1;  ///< devices of each pipeline
  int replicas = 1;
  int slices = 1;  ///< ranks for each device of a pipeline; 1 where options put slices aside, too
  std::shared_ptr<const Profile> profile;  ///< of this many slices, the optimizer's state divided by replicas
  JointOptions options;                    ///< of one replica
  std::optional<JointChoice> choice;
  Nanoseconds all_reduce = 0;  ///< on the device where it takes longest
  std::string why_not;         ///< where there is no choice

  const Candidate& winner() const { return choice->candidates[choice->winner]; }
  /// Of the optimizer, behind all gradients; as the next, only where there is a choice.
  Nanoseconds optimizer() const { return winner().step - winner().value(); }
  /// Its plan's objective and what follows it.
  Nanoseconds step() const { return winner().step + all_reduce; }
};

struct DegreeChoice {
  std::vector<Degree> degrees;  ///< the most replicas first
  std::size_t chosen = 0;

  Degree& best() { return degrees[chosen]; }
  const Degree& best() const { return degrees[chosen]; }
};

/// A profile, and what is wanted of its plan.
struct SlicedProfile {
  const Profile* profile = nullptr;
  JointOptions options;
};

/// Tries `options.replicas`, or with kAnyReplicas every number that divides devices and micro-batches. The
/// time limit is for all together. Throws what choose_plan() threw for the last one tried if none has a plan,
/// and InputError where the numbers do not divide, or devices of several kinds would make replicas that
/// differ.
DegreeChoice choose_degree(const Profile& profile, const JointOptions& options,
                           const Searcher& searcher = {});

/// The same with profiles of one model in several numbers of slices; each tries those that `options.slices`
/// asks for. All options are alike, except those that follow from the profile. Slices of a layer lie on one
/// node. Throws InputError where the profiles are not of one model and micro-batch size, have the same number
/// of slices, or none has the number that is asked for.
DegreeChoice choose_degree(const std::vector<SlicedProfile>& profiles, const Searcher& searcher = {});

}  // namespace ostinato
