// SPDX-License-Identifier: Apache-2.0
#pragma once
// What precedes a join, seen together: windows of the graph that end in a vertex with several inputs. Private
// to bound.h.
//
// The passes of reach.h take the best for every vertex and device by itself, so what is best for one input of
// a join may use a device, or leave it, against what is best for another. Here the vertices that come shortly
// before the join have one device each (window.h; docs/bounds.md, G5).
//
//   GraphWindows windows(times, reach, other_end, matters);
//   reach.pass(stop, [&](int v) { windows.look(v); });       // reach has risen where windows make it later

#include <vector>

#include "search/graph/reach.h"
#include "search/graph/window.h"

namespace ostinato::graph {

class GraphWindows {
 public:
  /// Both ends have had a pass. `other` is only read, here. `matters` says which vertices to look at.
  GraphWindows(const GraphTimes& times, GraphReach& reach, const GraphReach& other,
               const std::vector<char>& matters);

  /// Raises the reach of a vertex with several inputs on the devices where the longest path through it may be
  /// the shortest.
  void look(int v);

 private:
  void collect(int v);
  Ticks raised(Ticks from, Ticks span);

  const GraphTimes& times_;
  GraphReach& reach_;
  const GraphReach& other_;
  const std::vector<char>& matters_;
  GraphWindow window_;
  std::vector<Ticks> soonest_;  ///< [vertex]: its reach where that is least
  std::vector<char> seen_;      ///< [vertex]
  std::vector<int> jobs_;       ///< of one look: by rank
};

}  // namespace ostinato::graph
