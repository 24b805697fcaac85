// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one rank can know of its transfers before the first step: which receives a compute waits for, how
// early each may be posted, and when a send is certainly over.

#include <map>
#include <vector>

#include "plugin/lowering/program.h"

namespace ostinato {

/// What a receive may be posted ahead of: up to one compute before the one that it serves; one further would
/// hold buffers the plan does not count.
///
/// The lists of all ranks are projections of one global order, free of deadlock where everything blocks. A
/// receive that passes sends leaves that order: its channel must neither block where it is posted nor let it
/// hold up a send. In order, it passes computes alone, and none in which other ranks take part. What such a
/// compute makes leaves the rank by a transfer behind it, which the receive does not pass; so its sender
/// waits for none of it, and the two may change places in the global order. Then what the host issues is a
/// list that passes the proof as well: each of it may block the host (NCCL connects a pair at its first
/// transfer), and on the device all of it may share one in-order queue, the collectives of sharded stages
/// included.
enum class Posting {
  in_place,  ///< nothing
  in_order,  ///< computes that this rank runs alone; never another transfer: queues of an accelerator
  anywhere,  ///< computes and sends: gloo, and the memory of a host, where every receive has its own place
};

struct Itinerary {
  /// Per instruction: the receives that this compute consumes, as indices into the rank's list, one for each
  /// of the stage's inputs (forward) or outputs (backward); -1: handed over on this rank.
  std::vector<std::vector<int>> needs;

  /// Per instruction: how many sends and computes of this rank take what this compute made, one figure for
  /// each of the stage's outputs (forward) or inputs (backward). 0: another rank of the stage serves it, or
  /// no stage wants this gradient.
  std::vector<std::vector<int>> takers;

  /// Per instruction: the sends of what this compute made, as indices into the rank's list.
  std::vector<std::vector<int>> sends;

  /// Per instruction: at a send, how many sends to its peer come before it.
  std::vector<int> sends_before;

  /// Per instruction: receives with a smaller index are posted before it runs. At a compute, where `posting`
  /// lets them pass it, those up to the compute after it, so that what that one needs arrives meanwhile.
  std::vector<int> post_until;

  /// Per instruction: at a receive, how many sends to its peer the peer's list consumes before it sends this.
  /// Without lanes they have certainly been received once it has arrived: no send has to be waited for or
  /// polled (gloo cannot poll) before the end of the step, and no buffer of one is kept much longer than
  /// needed. A peer with lanes may send before its place in the list; then these sends are waited for, which
  /// cannot last for ever: to consume them the peer needs nothing that this rank does later.
  std::vector<int> sends_over;

  /// Per peer that this rank has transfers with: the most sends to it that are not certainly over at a time.
  std::map<int, int> most_sends;
};

/// Asserts that the program passes prove_deadlock_free(). O(instructions).
Itinerary itinerary(const Program& program, int rank, Posting posting);

}  // namespace ostinato
