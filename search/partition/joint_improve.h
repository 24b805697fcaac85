// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is made of candidates that were searched shortly: the third part of the joint choice (joint.h).
// Private to search/partition.
//
//   improve(judged, any_placement.lower_bound);
//   const Candidate& best = judged.list()[judged.best()];

#include "search/partition/joint_judged.h"

namespace ostinato::joint {

/// Adds candidates to the list, and searches those again that may still become the best. A plan of the value
/// `enough` cannot be beaten. The work is counted, and ends early where the time limit or a stop says so.
void improve(Judged& judged, Nanoseconds enough);

}  // namespace ostinato::joint
