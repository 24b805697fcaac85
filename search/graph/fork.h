// SPDX-License-Identifier: Apache-2.0
#pragma once
// What follows a fork, if the vertex of the fork is on one device. Private to graph_bound.
//
// reach.h lets every path choose a device anew for what lies on it, so a vertex where paths part may be on
// two devices at once, and only one of the fork and the join that follows it costs anything. Here a vertex v
// is assumed on one device after the other, with its group, and what is near is reached anew from there:
// every schedule has v on some device, so the least over the devices is a bound (docs/bounds.md, G4).
//
//   GraphForks forks(times, reach, matters);
//   reach.pass(stop, [&](int v) { forks.look(v); });         // reach has risen where forks make it later

#include <vector>

#include "search/graph/graph.h"
#include "search/graph/reach.h"

namespace ostinato::graph {

class GraphForks {
 public:
  /// The reach has had a pass. `matters` says of each vertex whether to look at it.
  GraphForks(const GraphTimes& times, GraphReach& reach, const std::vector<char>& matters);

  /// Raises the reach of up to kMostNear vertices that follow v, where v is on a path that is long enough to
  /// matter. O(kMostNear * edges * devices^2), times devices, mostly a fraction of it.
  void look(int v);

  static constexpr int kMostNear = 8;

 private:
  void collect(int v);
  void find_paths();
  void keep();
  bool assume(int device);
  bool too_late(int device) const;
  void restore();

  const GraphTimes& times_;
  GraphReach& reach_;
  const int devices_;
  const std::vector<char>& matters_;
  std::vector<Ticks> soonest_;  ///< [vertex]: its reach where that is least
  std::vector<int> local_;      ///< [vertex]: index into near_; -1: not there
  // Of one look:
  std::vector<int> near_;             ///< by rank, the vertex of the fork first
  std::vector<Ticks> path_;           ///< [index]: from the end of the first to its start, on no device
  std::vector<Ticks> kept_, least_;   ///< [index][device]: reach before, and the least so far
  std::vector<std::size_t> entries_;  ///< of inputs that a look changes
  std::vector<Ticks> kept_remote_;    ///< [of entries_][device]
};

}  // namespace ostinato::graph
