// SPDX-License-Identifier: Apache-2.0
#pragma once
// What all devices together cannot do in time. Private to bound.h.
//
// All that precedes a vertex has to be computed before it starts. At first few vertices are ready, and the
// last of them wait for each other, so most devices stand idle then; in between no more is done than all
// devices do at full speed (docs/bounds.md, G6). Paths do not see this, nor does the work of the whole graph:
// a loss divides a training step into two parts with two ends each.
//
//   GraphWork work(times, earliest, rest);      // lower bounds by path, in ticks
//   work.before(v) + times.duration(v, d) + work.after(v)         // no schedule with v on d is shorter

#include <functional>
#include <vector>

#include "search/graph/reach.h"

namespace ostinato::graph {

class GraphWork {
 public:
  /// Raises `earliest`, when each vertex can start, and `rest`, the time from its end to the end of all. When
  /// `stop` says true, what is raised so far is left. O(V * (V + E) + V^2 log V) time, O(V) memory.
  GraphWork(const GraphTimes& times, std::vector<Ticks> earliest, std::vector<Ticks> rest,
            const std::function<bool()>& stop);

  Ticks before(int vertex) const { return before_[vertex]; }
  Ticks after(int vertex) const { return after_[vertex]; }
  /// Of the whole graph.
  Ticks makespan() const { return makespan_; }

 private:
  std::vector<Ticks> before_, after_;
  Ticks makespan_ = 0;
};

}  // namespace ostinato::graph
