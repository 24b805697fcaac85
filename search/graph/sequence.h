// SPDX-License-Identifier: Apache-2.0
#pragma once
// A schedule of an operator graph as a sequence: a topological order of all vertices and a device for each.
// Every device runs its vertices in that order, each as early as it can; some sequence gives an optimal
// schedule.
//
// It knows for each vertex the longest path that ends at its start (head) and that begins with it (tail),
// through inputs and through its device. So what a change does to a window of the sequence is seen by
// recomputing that window alone: behind it the old tails are still exact (Taillard's idea for job shops, EJOR
// 65, 1993, here for whole windows).
//
//   GraphSequence s(costs, assignment, order);
//   GraphChange change{.moves = {{v, d}}, .position = s.position(v)};
//   if (s.longest_path(change, s.makespan()) < s.makespan()) s.apply(change);

#include <vector>

#include "search/graph/graph.h"
#include "search/graph/links.h"

namespace ostinato::graph {

struct GraphMove {
  int vertex = 0;
  int device = 0;  ///< after the change
};

/// Vertices that go to other devices where they stand; a single one may also move to another position.
struct GraphChange {
  std::vector<GraphMove> moves;  ///< by position
  int position = -1;             ///< of a single vertex after the change; -1: stay
};

class GraphSequence {
 public:
  /// `order` is a topological order. O((V + E) + V * devices) to build.
  GraphSequence(const GraphCosts& costs, Assignment assignment, std::vector<int> order);

  /// Changes shall stay within these positions until the next call. Heads behind them and tails before them
  /// wait till then, so a change costs what the scope is long, not the sequence. O(what changed + scope).
  void set_scope(int first, int last);
  bool in_scope(const GraphChange& change) const;
  int scope_first() const { return scope_.first; }
  int scope_last() const { return scope_.last; }

  /// The longest path that touches the scope: the makespan where that is everything, as at first.
  Ticks makespan() const { return makespan_; }
  const Assignment& assignment() const { return device_; }
  const std::vector<int>& order() const { return order_; }
  const std::vector<Ticks>& starts() const { return head_; }
  int position(int vertex) const { return position_[vertex]; }
  int device(int vertex) const { return device_[vertex]; }
  int device_previous(int vertex) const { return previous_[vertex]; }  ///< -1: first on its device
  int device_next(int vertex) const { return next_[vertex]; }

  /// First and last position where the vertex may stand, by its inputs and successors.
  int earliest_position(int vertex) const;
  int latest_position(int vertex) const;

  /// Bytes by which a device would be over its memory, were the change made; 0: it fits.
  std::int64_t over(const GraphChange& change, int device) const;
  const std::vector<int>& on_device(int device) const { return lists_[device]; }  ///< by position

  /// Longest path that touches the changed window, if the change were made; some value above `limit` as soon
  /// as it is known to exceed that. Paths past the window stay as they are. O(vertices and edges of the
  /// window).
  Ticks longest_path(const GraphChange& change, Ticks limit);

  /// Makes the change and brings heads, tails and makespan up to date. O(window + what changes + V / 64).
  void apply(const GraphChange& change);

  /// Vertices looked at so far, by both of the above: the same for the same calls, unlike seconds.
  std::int64_t work() const { return work_; }
  void count_work(std::int64_t more) { work_ += more; }

  /// What lies in the scope of a longest path, from its first vertex. Where both an input and the device hold
  /// a vertex up, the input counts.
  std::vector<int> critical_path() const;

 private:
  struct Window {
    int first, last;
  };

  Ticks execution(int v, int d) const { return execution_[static_cast<std::size_t>(v) * devices_ + d]; }
  Ticks transfer(int v, int from, int to) const {
    if (from == to) return 0;  // mostly, in a good schedule
    return transfer_[v * classes_ + links_.classes_from(from)[to]];
  }
  void tabulate();
  void put(int v, int device) {
    device_[v] = device;
    duration_[v] = execution(v, device);
  }
  Window window(const GraphChange& change) const;
  void lay_out(const GraphChange& change, Window window);
  Ticks available(int device, int before);
  Ticks pass_window(Window window, Ticks limit);
  void unlink(int v);
  void link(int v);
  std::vector<int>::iterator place(int device, int position);
  Ticks head_of(int v) const;
  Ticks tail_of(int v) const;
  void mark(std::vector<char>& dirty, int vertex) const {
    if (vertex >= 0) dirty[position_[vertex]] = 1;
  }
  void update_heads(int from, int to, int last_changed);
  void update_tails(int from, int to, int first_changed);
  void update_makespan();

  const GraphCosts& costs_;
  const OperatorGraph& graph_;
  const int devices_;
  GraphLinks links_;
  std::size_t classes_;           ///< of pairs of devices
  std::vector<Ticks> execution_;  ///< [vertex][device]
  std::vector<Ticks> transfer_;   ///< [vertex][class]
  Assignment device_;
  std::vector<Ticks> duration_;  ///< of each vertex on its device
  std::vector<int> order_, position_;
  std::vector<int> previous_, next_;     ///< on the same device; -1: none
  std::vector<std::vector<int>> lists_;  ///< vertices of each device by position
  std::vector<std::int64_t> used_;       ///< memory of each device
  std::vector<Ticks> head_, tail_;
  Window scope_{0, 0};
  Ticks makespan_ = 0;
  std::int64_t work_ = 0;
  // Of one look at a change:
  std::vector<int> window_order_;
  std::vector<Ticks> window_head_;  ///< valid where seen_ == look_
  std::vector<int> seen_, device_seen_;
  std::vector<Ticks> available_;  ///< valid where device_seen_ == look_
  std::vector<int> touched_;
  std::vector<GraphMove> undo_;
  int look_ = 0;
  // Of one change: positions to compute again, and who lost a neighbour on its device.
  std::vector<char> dirty_heads_, dirty_tails_;
  std::vector<int> lost_previous_, lost_next_;
};

}  // namespace ostinato::graph
