// SPDX-License-Identifier: Apache-2.0
#pragma once
// How far the ranks of a program of forwards may part, where nothing comes back that says what has arrived.
//
//   const int ahead = sends_ahead(program, 2, false);   // with this many under way to a peer a rank waits
//   const int front = front_stage(program, 2, false);   // its rank may tell other ranks what comes in next
//
// Both ask whether the program still runs to its end under more rules than its own. As in deadlock.h a rule
// only says what an instruction waits for, so one execution decides:
//
//   a compute     until it has its messages, on all ranks of its stage together; of a stage without inputs,
//                 after the front's
//   a receive     for nothing; the first along an edge from a peer, which brings its shapes, until that has
//                 been sent; with `receives_wait` (shapes that may change) every one
//   a send        until fewer than `ahead` messages of its rank to that peer are still to be consumed, oldest
//                 first: a message counts until the compute that takes it has run, as one in a mailbox does

#include "plugin/lowering/program.h"

namespace ostinato {

/// The least of `least`, 2 * least, 4 * least, ... messages of a rank to another with which the program runs
/// to its end. `program` has forwards only, and passed prove_deadlock_free(). O(instructions * log(answer)).
int sends_ahead(const Program& program, int least, bool receives_wait);

/// The first stage without inputs whose forward of each micro-batch may run before any other such stage's,
/// with sends_ahead() of the same arguments: its rank can send what it knows to their ranks in time. -1:
/// there is none. O(stages * instructions).
int front_stage(const Program& program, int least, bool receives_wait);

}  // namespace ostinato
