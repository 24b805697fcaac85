// SPDX-License-Identifier: Apache-2.0
#pragma once
// When can each vertex start on each device, at the earliest, whatever the assignment and the schedule?
// Private to bound.h.
//
// Seen forwards, reach(v, d) is a lower bound on the start of v if it runs on d; seen backwards, on the time
// from the end of v on d to the end of all. Either is a pass over the graph (docs/bounds.md, G1 to G3). A
// pass only raises what is there, so one that is stopped leaves bounds, too.
//
//   GraphReach forwards(times, GraphReach::From::start, true), backwards(times, GraphReach::From::end, true);
//   forwards.pass(stop), backwards.pass(stop);
//   forwards(v, d) + times.duration(v, d) + backwards(v, d)       // no schedule with v on d is shorter

#include <functional>
#include <span>
#include <vector>

#include "search/graph/cone.h"
#include "search/graph/graph.h"
#include "search/graph/join.h"
#include "search/graph/links.h"

namespace ostinato::graph {

/// What both ends share.
struct GraphTimes {
  explicit GraphTimes(const GraphCosts& costs);

  Ticks duration(int vertex, int device) const {
    return durations[static_cast<std::size_t>(vertex) * device_count + device];
  }
  const std::vector<int>& homes(int vertex) const { return domains[graph.group[vertex]]; }

  const GraphCosts& costs;
  const OperatorGraph& graph;
  const int device_count;
  std::vector<std::vector<int>> domains;  ///< devices that may hold each group, ascending
  std::vector<Ticks> durations;           ///< [vertex][device]
};

class GraphReach {
 public:
  enum class From { start, end };

  /// `cones`: look at several levels at once (cone.h). O((V + E) * devices) memory.
  GraphReach(const GraphTimes& times, From from, bool cones);

  /// Every vertex behind its inputs, until `stop` says true; `then` is called with each when it is done.
  /// O((V + E) * devices^2).
  void pass(const std::function<bool()>& stop, const std::function<void(int)>& then = {});

  Ticks operator()(int vertex, int device) const { return release_[at(vertex, device)]; }

  const Ticks* row(int vertex) const { return &release_[at(vertex, 0)]; }
  /// Sets the reach of a vertex on its devices, for what follows it, too.
  void raise(int vertex, const Ticks* row);
  bool forwards() const { return forwards_; }
  const Lists<int>& inputs() const { return inputs_; }
  const Lists<int>& outputs() const { return outputs_; }
  int rank(int vertex) const { return rank_[vertex]; }

 private:
  std::size_t at(int v, int d) const { return static_cast<std::size_t>(v) * devices_ + d; }
  void visit(int v);
  Ticks earliest(int v, int d);
  std::size_t entry(int v, int input) const;
  void receive(int v);
  void send(int v);
  void sort_ends(int v);
  std::span<const int> soonest(int v) const { return {&soonest_[at(v, 0)], times_.homes(v).size()}; }

  const GraphTimes& times_;
  const OperatorGraph& graph_;
  const int devices_;
  const bool forwards_, cones_;
  const Lists<int>&inputs_, &outputs_;
  GraphLinks links_;
  std::vector<int> rank_;       ///< larger than that of all inputs
  std::vector<Ticks> release_;  ///< [vertex][device], kGraphNever outside the domains
  std::vector<Ticks> remote_;   ///< [entry of inputs][device]: not earlier over a link
  std::vector<Ticks> ends_;     ///< [vertex][device]: release and duration
  std::vector<int> soonest_;    ///< [vertex]: its domain, by its end there
  std::vector<Ticks> row_;      ///< of one tensor: at each device
  GraphJoin join_;
  GraphCone cone_;
};

}  // namespace ostinato::graph
