// SPDX-License-Identifier: Apache-2.0
#pragma once
// One partial schedule of the beam search, what may come next, and a bound on what it can become.

#include <vector>

#include "search/placement/instance.h"
#include "search/schedule/beam.h"

namespace ostinato {

/// A partial schedule. `ends` is a ring per block: the end of micro-batch i stands at [block * window + i %
/// window].
struct BeamState {
  std::vector<int> count;
  std::vector<Nanoseconds> free;
  std::vector<Bytes> used;  ///< per device, static memory excluded
  std::vector<Nanoseconds> ends;
  /// Per device: what is left of its work from its first next start to the end of all, at least.
  std::vector<Nanoseconds> to_go;
  Nanoseconds cursor = 0;  ///< start of the last step
  Nanoseconds value = 0;   ///< largest end + tail of the steps that ran
  int trace = -1;          ///< the last step, in the trace of the search
};

/// A child that has not been built yet.
struct BeamChild {
  Nanoseconds bound;
  __int128 rank;  ///< among equal bounds
  Nanoseconds start;
  std::uint64_t hash;  ///< of its counts
  int parent;
  int block;
};

/// Moves and bounds for one goal. Not shared between threads.
class BeamMoves {
 public:
  BeamMoves(const Instance& instance, const BeamGoal& goal, int flavour);

  BeamState root() const;
  /// Appends every child of `state`, which is left as it was. O(candidates * (blocks + edges)).
  void children(BeamState& state, std::uint64_t hash, int parent, std::vector<BeamChild>& out);
  /// Starts `block` at `start`.
  void apply(BeamState& state, int block, Nanoseconds start) const;
  /// True if the micro-batches in flight can be finished one after another, oldest first: no deadlock over
  /// memory.
  bool safe(const BeamState& state);
  /// Whatever can follow b can follow a, no later. Both must have the same counts.
  bool dominates(const BeamState& a, const BeamState& b) const;

 private:
  struct Undo {
    Nanoseconds cursor;
    Nanoseconds value;
    Nanoseconds end;
  };
  Undo remember(const BeamState& state, int b);
  void take_back(BeamState& state, int b, const Undo& undo) const;
  std::size_t slot(int b, int i) const { return b * window_ + (i & (window_ - 1)); }
  bool startable(const BeamState& state, int b) const;
  bool fits(const BeamState& state, int b) const;
  bool harmless(int b) const;
  void estimate(const BeamState& state);
  void wait_for_memory(const BeamState& state);
  Nanoseconds earliest(const BeamState& state, int b) const;
  Nanoseconds bound(const BeamState& state);
  Nanoseconds device_bound(const BeamState& state, int d) const;
  void find_thresholds(int d);
  Nanoseconds to_go(const BeamState& state, int d) const;

  const Instance& in_;
  const BeamGoal& goal_;
  int flavour_;
  int window_;
  /// A tail, and for each block on a device how many of its steps have at least this one.
  struct Threshold {
    Nanoseconds tail;
    std::vector<int> steps;
  };
  std::vector<std::vector<Threshold>> thresholds_;  ///< per device
  std::vector<Nanoseconds> last_tail_;              ///< per block: of its last step
  std::vector<Nanoseconds> earliest_;               ///< of the next step of each block
  std::vector<std::uint64_t> key_;                  ///< hash key of each block
  std::vector<Bytes> scratch_;
  __int128 rank_ = 0;
  std::vector<Nanoseconds> free_before_, to_go_before_;
};

}  // namespace ostinato
