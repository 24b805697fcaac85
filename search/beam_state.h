#pragma once
// One partial schedule of the beam search, what may come next, and a bound on what it can become.

#include <vector>

#include "search/beam.h"
#include "search/instance.h"

namespace ostinato {

/// A partial schedule. `ends` is a ring per block: the end of micro-batch i stands at [block * window + i %
/// window].
struct BeamState {
  std::vector<int> count;
  std::vector<Nanoseconds> free;
  std::vector<Nanoseconds> work_left;  ///< per device
  std::vector<Bytes> used;             ///< per device, static memory excluded
  std::vector<Nanoseconds> ends;
  Nanoseconds cursor = 0;  ///< start of the last step
  Nanoseconds value = 0;   ///< largest end + tail of the steps that ran
  int trace = -1;          ///< the last step, in the trace of the search
};

/// A child that has not been built yet.
struct BeamChild {
  Nanoseconds bound;
  Nanoseconds rank;  ///< among equal bounds
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
  /// Appends every child of `state`. O(candidates * (blocks + edges)).
  void children(const BeamState& state, std::uint64_t hash, int parent, std::vector<BeamChild>& out);
  /// Starts `block` at `start`.
  void apply(BeamState& state, int block, Nanoseconds start) const;
  /// True if the micro-batches in flight can be finished one after another, oldest first: no deadlock over
  /// memory.
  bool safe(const BeamState& state);

 private:
  bool startable(const BeamState& state, int b) const;
  bool fits(const BeamState& state, int b) const;
  bool harmless(int b) const;
  void estimate(const BeamState& state);
  void wait_for_memory(const BeamState& state);
  Nanoseconds earliest(const BeamState& state, int b) const;
  Nanoseconds bound(const BeamState& state);
  Nanoseconds device_bound(const BeamState& state, int d) const;

  const Instance& in_;
  const BeamGoal& goal_;
  int flavour_;
  int window_;
  std::vector<Nanoseconds> earliest_;  ///< of the next step of each block
  std::vector<std::uint64_t> key_;     ///< hash key of each block
  std::vector<Bytes> scratch_;
  Nanoseconds rank_ = 0;
  BeamState child_;
};

}  // namespace ostinato
