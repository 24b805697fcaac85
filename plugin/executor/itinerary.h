#pragma once
// What one rank can know of its transfers before the first step: which receives a compute waits for, how
// early each may be posted, and when a send is certainly over.

#include <map>
#include <vector>

#include "plugin/program.h"

namespace ostinato {

struct Itinerary {
  /// Per instruction: the receives that this compute consumes, as indices into the rank's list, one for each
  /// of the stage's inputs (forward) or outputs (backward); -1: handed over on this rank.
  std::vector<std::vector<int>> needs;

  /// Per instruction: how many sends and computes of this rank take what this compute made, one figure for
  /// each of the stage's outputs (forward) or inputs (backward). 0: another rank of the stage serves it, or
  /// it is a gradient that nobody wants.
  std::vector<std::vector<int>> takers;

  /// Per instruction: receives with a smaller index are posted before it runs. At a compute that is
  /// everything up to the compute after it, so that what it needs arrives meanwhile; one further would hold
  /// buffers the plan does not count.
  std::vector<int> post_until;

  /// Per instruction: at a receive, so many sends to its peer have certainly been received once it has
  /// arrived, because the peer consumed them before it sent. No send has to be waited for or polled (gloo
  /// cannot poll) before the end of the step, and no buffer of one is kept much longer than needed.
  std::vector<int> sends_over;

  /// Per peer that this rank has transfers with: the most sends to it that are not certainly over at a time.
  std::map<int, int> most_sends;
};

/// Asserts that the program passes prove_deadlock_free(). O(instructions).
Itinerary itinerary(const Program& program, int rank, bool post_ahead);

}  // namespace ostinato
