// SPDX-License-Identifier: Apache-2.0
#pragma once
// How early can a vertex start on a device, when what feeds it must run there as well? Private to bound.h.
//
// Suppose v starts on device d at `time`. An input must run on d and end by then if its group is on d, or if
// its tensor would arrive later over a link. So must, before it, its inputs that would arrive too late; and
// so on. All these run on d one after another, none before its release. If they cannot (earliest deadline
// first, which is exact where jobs may be interrupted), v cannot start at `time` or earlier. It is the join
// of bound.h over several levels of the graph at once: the work that must gather on one device.
//
// The same holds backwards in time for what follows v. GraphSide says which of the two is meant.

#include <vector>

#include "search/graph/graph.h"

namespace ostinato::graph {

/// The graph seen from one end, for devices 0 .. devices - 1.
struct GraphSide {
  const Lists<int>& inputs;             ///< of each vertex: what must be before it, seen from this end
  const std::vector<int>& group;        ///< of each vertex: what must share a device
  const std::vector<int>& rank;         ///< of each vertex; larger than that of all its inputs
  const std::vector<Ticks>& remote;     ///< [entry of inputs][device]: not earlier over a link
  const std::vector<Ticks>& release;    ///< [vertex][device]: not earlier in any way
  const std::vector<Ticks>& durations;  ///< [vertex][device]
  int devices;
};

class GraphCone {
 public:
  explicit GraphCone(const GraphSide& side, int vertices);

  /// A bound of when v can start on `device`, at least `from`, which must be one. Looks at kMostForced
  /// vertices at a time; O(their edges * log) for each of some 40 times that it tries where that is later.
  Ticks earliest(int v, int device, Ticks from);

  static constexpr int kMostForced = 512;

 private:
  struct Job {
    Ticks release, duration, deadline;
  };

  bool possible(int v, int device, Ticks time);
  bool gather(int v, int device, Ticks time);
  bool force_inputs(int v, int device, Ticks deadline);
  bool must_be_here(int input, std::size_t entry, int device, Ticks deadline) const;
  bool in_turn();

  const GraphSide side_;
  std::vector<Ticks> deadline_;  ///< valid where seen_ == look_
  std::vector<int> seen_, group_seen_;
  int look_ = 0;
  std::vector<std::pair<int, int>> heap_;  ///< (rank, vertex): the last one first
  std::vector<Job> jobs_;
  std::vector<std::pair<Ticks, Ticks>> ready_;  ///< (deadline, time left)
};

}  // namespace ostinato::graph
