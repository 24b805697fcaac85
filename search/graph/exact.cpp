// SPDX-License-Identifier: Apache-2.0
// 1. Once: the least time from the start of each vertex on each device to the end of all, backwards through
//    the graph.
// 2. extend(), depth first: look_ahead() computes the earliest starts of all that is left and drops the node
//    if a path, the memory or the work cannot do; dominated() drops it if a node seen before is no later in
//    anything that counts. The vertices that have their inputs are then tried on each device, the earliest
//    end first.
// 3. keep() takes complete schedules that are shorter, and lowers the limit of all nodes to come.
// `complete` unless nodes or time ran out: then nothing shorter than the result, or than `below`, exists.
// All nodes that were not dominated stay in memory.
#include "search/graph/exact.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ostinato::graph {
namespace {

constexpr Ticks kNever = std::numeric_limits<Ticks>::max() / 4;

/// Vertices by their position in the topological order throughout, so that inputs come first.
class ExactSearch {
 public:
  ExactSearch(const GraphCosts& costs, const ExactOptions& options)
      : costs_(costs),
        graph_(costs.graph()),
        options_(options),
        size_(graph_.size()),
        devices_(costs.device_count()),
        best_(options.below),
        tail_(at(size_, 0), kNever),
        earliest_(at(size_, 0), kNever),
        device_(size_, -1),
        end_(size_, 0),
        left_in_group_(graph_.groups.rows()),
        free_at_(devices_, 0),
        used_(devices_, 0) {
    for (int v = 0; v < size_; ++v) missing_.push_back(static_cast<int>(graph_.predecessors[v].size()));
    for (int g = 0; g < graph_.groups.rows(); ++g) {
      left_in_group_[g] = static_cast<int>(graph_.groups[g].size());
      memory_left_ += graph_.group_memory[g];
    }
    for (const std::int64_t o : graph_.operations) operations_left_ += o;
    for (auto v = graph_.order.rbegin(); v != graph_.order.rend(); ++v) find_tails(*v);
  }

  ExactPartition run() {
    result_.complete = true;
    extend();
    return std::move(result_);
  }

 private:
  struct Child {
    Ticks start, bound;
    int vertex, device;
  };
  /// When what a node's rest depends on is ready: smaller is better, number by number.
  using Times = std::vector<Ticks>;

  std::size_t at(int v, int d) const { return static_cast<std::size_t>(v) * devices_ + d; }

  /// The least time from the start of a vertex on each device to the end of all, if no device were ever busy.
  void find_tails(int v) {
    for (int d = 0; d < devices_; ++d) {
      if (!costs_.allowed(graph_.group[v], d)) continue;
      Ticks rest = 0;
      for (const int w : graph_.successors[v]) {
        Ticks least = kNever;
        for (int to = 0; to < devices_; ++to) {
          if (graph_.group[w] == graph_.group[v] && to != d) continue;
          least = std::min(least, costs_.transfer(v, d, to) + tail_[at(w, to)]);
        }
        rest = std::max(rest, least);
      }
      tail_[at(v, d)] = costs_.execution(v, d) + rest;
    }
  }

  /// The device that a group has, or may still have: -1: none of its vertices was placed.
  int home_of(int group) const {
    for (const int v : graph_.groups[group])
      if (device_[v] >= 0) return device_[v];
    return -1;
  }
  bool may_hold(int group, int home, int d) const {
    if (home >= 0) return home == d;
    return costs_.allowed(group, d) &&
           used_[d] + graph_.group_memory[group] <= costs_.devices().devices[d].memory;
  }

  /// Earliest starts of all that is left, on each device; false where the node cannot lead to anything
  /// shorter.
  bool look_ahead() {
    for (const int v : graph_.order) {
      if (device_[v] >= 0) continue;
      const int home = home_of(graph_.group[v]);
      Ticks bound = kNever;
      for (int d = 0; d < devices_; ++d) {
        Ticks& start = earliest_[at(v, d)];
        start = kNever;
        if (!may_hold(graph_.group[v], home, d)) continue;
        start = earliest_start(v, d);
        if (start < kNever) bound = std::min(bound, start + tail_[at(v, d)]);
      }
      if (bound >= best_ || bound >= kNever) return false;
    }
    return memory_suffices() && work_suffices();
  }

  Ticks earliest_start(int v, int d) const {
    Ticks start = free_at_[d];
    for (const int u : graph_.predecessors[v]) {
      Ticks arrival = kNever;
      if (device_[u] >= 0) {
        arrival = end_[u] + costs_.transfer(u, device_[u], d);
      } else {
        for (int from = 0; from < devices_; ++from)
          if (earliest_[at(u, from)] < kNever && (graph_.group[u] != graph_.group[v] || from == d))
            arrival = std::min(
                arrival, earliest_[at(u, from)] + costs_.execution(u, from) + costs_.transfer(u, from, d));
      }
      start = std::max(start, arrival);
    }
    return std::min(start, kNever);
  }

  bool memory_suffices() const {
    __int128 room = 0;
    for (int d = 0; d < devices_; ++d) room += costs_.devices().devices[d].memory - used_[d];
    return room >= memory_left_;
  }

  /// What the devices could do until just before `best_`.
  bool work_suffices() const {
    __int128 room = 0;
    for (int d = 0; d < devices_; ++d) {
      const Ticks time = std::max<Ticks>(0, best_ - 1 - free_at_[d]);
      room += static_cast<__int128>(time) * costs_.devices().devices[d].speed;
    }
    return room >= static_cast<__int128>(operations_left_) * kTicksPerUnit;
  }

  void extend() {
    if (placed_ == size_) return keep();
    ++nodes_;
    if (nodes_ > options_.nodes || (nodes_ % 1024 == 0 && options_.stop && options_.stop())) {
      result_.complete = false;
      return;
    }
    if (!look_ahead() || dominated()) return;
    for (const Child& child : children()) {
      if (!result_.complete) return;
      if (child.bound >= best_) continue;
      place(child);
      extend();
      take_back(child);
    }
  }

  std::vector<Child> children() const {
    std::vector<Child> list;
    for (int v = 0; v < size_; ++v) {
      if (device_[v] >= 0 || missing_[v] > 0) continue;
      for (int d = 0; d < devices_; ++d) {
        const Ticks start = earliest_[at(v, d)];
        if (start < kNever) list.push_back({start, start + tail_[at(v, d)], v, d});
      }
    }
    std::stable_sort(list.begin(), list.end(), [&](const Child& a, const Child& b) {
      return a.start + costs_.execution(a.vertex, a.device) < b.start + costs_.execution(b.vertex, b.device);
    });
    return list;
  }

  void place(const Child& c) {
    const int group = graph_.group[c.vertex];
    if (home_of(group) < 0) {
      used_[c.device] += graph_.group_memory[group];
      memory_left_ -= graph_.group_memory[group];
    }
    device_[c.vertex] = c.device;
    --left_in_group_[group];
    free_before_.push_back(free_at_[c.device]);
    free_at_[c.device] = end_[c.vertex] = c.start + costs_.execution(c.vertex, c.device);
    order_.push_back(c.vertex);
    operations_left_ -= graph_.operations[c.vertex];
    for (const int w : graph_.successors[c.vertex]) --missing_[w];
    ++placed_;
  }

  void take_back(const Child& c) {
    const int group = graph_.group[c.vertex];
    device_[c.vertex] = -1;
    ++left_in_group_[group];
    if (home_of(group) < 0) {
      used_[c.device] -= graph_.group_memory[group];
      memory_left_ += graph_.group_memory[group];
    }
    free_at_[c.device] = free_before_.back();
    free_before_.pop_back();
    order_.pop_back();
    operations_left_ += graph_.operations[c.vertex];
    for (const int w : graph_.successors[c.vertex]) ++missing_[w];
    --placed_;
  }

  void keep() {
    const Ticks makespan = *std::max_element(free_at_.begin(), free_at_.end());
    if (makespan >= best_) return;
    best_ = makespan;
    GraphSolution& s = result_.solution.emplace();
    s.assignment = device_;
    s.order = order_;
    s.makespan = makespan;
    for (int v = 0; v < size_; ++v) s.start.push_back(end_[v] - costs_.execution(v, device_[v]));
  }

  /// Whether a node seen before is as good; if not, this one is kept for those to come.
  bool dominated() {
    std::string key;
    Times times;
    describe(key, times);
    std::vector<Times>& list = seen_[key];
    const auto no_later = [&](const Times& other) {
      return std::equal(other.begin(), other.end(), times.begin(), [](Ticks a, Ticks b) { return a <= b; });
    };
    if (std::any_of(list.begin(), list.end(), no_later)) return true;
    std::erase_if(list, [&](const Times& other) {
      return std::equal(times.begin(), times.end(), other.begin(), [](Ticks a, Ticks b) { return a <= b; });
    });
    list.push_back(std::move(times));
    return false;
  }

  /// A device counts as busy until something that is left can start there.
  void describe(std::string& key, Times& times) const {
    const auto add = [&](std::int64_t number) {
      key.append(reinterpret_cast<const char*>(&number), sizeof number);
    };
    for (int d = 0; d < devices_; ++d) {
      add(used_[d]);
      Ticks first = kNever;
      for (int v = 0; v < size_; ++v)
        if (device_[v] < 0) first = std::min(first, earliest_[at(v, d)]);
      times.push_back(first);
    }
    for (int v = 0; v < size_; ++v) {
      const auto& next = graph_.successors[v];
      const bool read = std::any_of(next.begin(), next.end(), [&](int w) { return device_[w] < 0; });
      const bool needed = device_[v] >= 0 && (read || left_in_group_[graph_.group[v]] > 0);
      key.push_back(static_cast<char>(device_[v] < 0 ? -1 : needed ? device_[v] : kMostExactDevices));
      if (needed && read) times.push_back(end_[v]);
    }
    // What ran as the last of all on a device that nothing can use any more still ends the schedule.
    times.push_back(*std::max_element(free_at_.begin(), free_at_.end()));
  }

  const GraphCosts& costs_;
  const OperatorGraph& graph_;
  const ExactOptions& options_;
  const int size_, devices_;
  Ticks best_;                          ///< shorter ones are looked for
  std::vector<Ticks> tail_, earliest_;  ///< [vertex][device]; kNever: not there
  // The node:
  std::vector<int> device_;  ///< of each vertex; -1: not placed
  std::vector<Ticks> end_;
  std::vector<int> missing_;  ///< inputs that are not placed
  std::vector<int> left_in_group_;
  std::vector<Ticks> free_at_, free_before_;
  std::vector<std::int64_t> used_;
  __int128 memory_left_ = 0;
  std::int64_t operations_left_ = 0;
  std::vector<int> order_;
  int placed_ = 0;
  std::int64_t nodes_ = 0;
  std::unordered_map<std::string, std::vector<Times>> seen_;
  ExactPartition result_;
};

}  // namespace

bool may_be_exhausted(const GraphCosts& costs) {
  return costs.graph().size() <= kMostExactVertices && costs.device_count() <= kMostExactDevices;
}

ExactPartition exact_partition(const GraphCosts& costs, const ExactOptions& options) {
  if (!may_be_exhausted(costs)) return {};
  return ExactSearch(costs, options).run();
}

}  // namespace ostinato::graph
