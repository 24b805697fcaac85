// SPDX-License-Identifier: Apache-2.0
// 1. improve() runs three rounds of 1, 4 and 16 parts of the work, each from the best of the one before.
// 2. A round searches a part of the sequence at a time (choose_scope()), at times all of it.
// 3. propose() draws a change at a vertex of the critical path: an order, a group, a stretch or a position;
//    make_room() sends other groups away if the device lacks memory.
// 4. try_change() computes the longest path through the changed window only, and takes the change if that is
//    below the makespan plus a random threshold, which falls with the square of the work left.
// Work counts vertices looked at, proposals included.
#include "search/graph/local_search.h"

#include <algorithm>
#include <utility>

#include "search/graph/sequence.h"
#include "search/numbers/random.h"

namespace ostinato::graph {
namespace {

/// Groups that are asked to leave a device for what comes.
constexpr int kMostLeaving = 6;
/// Positions of a part that is searched by itself, of how many parts one is the whole, and the work on each
/// in vertices looked at for each of the graph's.
constexpr int kPart = 256, kWholes = 8, kWorkOfPart = 8;

/// Of changes by kind: a vertex past other vertices, a group, a stretch of the critical path, a vertex to a
/// position.
struct Shares {
  int order, group, stretch, vertex;
};
constexpr Shares kGroups = {1, 5, 5, 5}, kVertices = {3, 3, 4, 8};

class LocalSearch {
 public:
  LocalSearch(const GraphCosts& costs, const GraphSolution& start, const GraphSearchOptions& options)
      : costs_(costs),
        graph_(costs.graph()),
        options_(options),
        random_(options.seed),
        sequence_(costs, start.assignment, start.order),
        path_(sequence_.critical_path()),
        threshold_start_(mean_step()) {
    keep();
  }

  GraphSolution run() {
    while (sequence_.work() < options_.work && best_.makespan > options_.lower_bound) {
      if (options_.stop && options_.stop()) break;
      choose_scope();
      search_scope();
      sequence_.set_scope(0, graph_.size() - 1);
      if (sequence_.makespan() < best_.makespan) keep();
    }
    best_.start = GraphSequence(costs_, best_.assignment, best_.order).starts();
    return std::move(best_);
  }

 private:
  /// What a small change costs: one vertex and one transfer, in the mean, where they are fastest.
  Ticks mean_step() const {
    Ticks sum = 0;
    const std::vector<int>& fast = costs_.by_speed();
    for (int v = 0; v < graph_.size(); ++v) {
      const int d = costs_.fastest(graph_.group[v]);
      const int to = fast[0] == d && fast.size() > 1 ? fast[1] : fast[0];
      sum += costs_.execution(v, d) / graph_.size() + costs_.transfer(v, d, to) / graph_.size();
    }
    return sum;
  }

  Ticks threshold() {
    const double left = 1 - static_cast<double>(sequence_.work()) / static_cast<double>(options_.work);
    const auto highest = static_cast<Ticks>(static_cast<double>(threshold_start_) * left * left);
    return highest > 0 ? static_cast<Ticks>(random_.next() % static_cast<std::uint64_t>(highest)) : 0;
  }

  void keep() {
    best_.assignment = sequence_.assignment();
    best_.order = sequence_.order();
    best_.makespan = sequence_.makespan();
  }

  /// A part of the sequence, at times all of it: groups may be wider than a part.
  void choose_scope() {
    const int size = graph_.size();
    if (size > kPart && random_.below(kWholes) > 0) {
      const int first = random_.below(size + kPart / 2) - kPart / 2;
      sequence_.set_scope(std::max(0, first), std::min(size - 1, first + kPart));
    }
    path_ = sequence_.critical_path();
  }

  void search_scope() {
    const std::int64_t until =
        std::min(options_.work, sequence_.work() + std::int64_t{kWorkOfPart} * graph_.size());
    const bool whole = sequence_.scope_first() == 0 && sequence_.scope_last() == graph_.size() - 1;
    for (std::int64_t step = 1; sequence_.work() < until; ++step) {
      if (step % 256 == 0 && options_.stop && options_.stop()) break;
      sequence_.count_work(1);  // a proposal that comes to nothing is work as well
      if (!propose() || !try_change()) continue;
      if (whole && sequence_.makespan() < best_.makespan) keep();
      if (best_.makespan <= options_.lower_bound) break;
    }
  }

  bool try_change() {
    if (!make_room() || !sequence_.in_scope(change_)) return false;
    const Ticks limit = sequence_.makespan() + threshold() - 1;
    if (sequence_.longest_path(change_, limit) > limit) return false;
    sequence_.apply(change_);
    path_ = sequence_.critical_path();
    return true;
  }

  bool in_change(int group) const {
    return std::any_of(change_.moves.begin(), change_.moves.end(),
                       [&](const GraphMove& m) { return graph_.group[m.vertex] == group; });
  }

  /// Other groups leave the device until its memory holds what comes; false where that was not found.
  bool make_room() {
    const int to = change_.moves.front().device, from = sequence_.device(change_.moves.front().vertex);
    if (to == from || sequence_.over(change_, to) == 0) return true;
    for (int tries = 0; tries < kMostLeaving; ++tries) {
      sequence_.count_work(1);
      if (send_away(to, random_.below(2) == 0 ? from : random_.below(costs_.device_count())) &&
          sequence_.over(change_, to) == 0) {
        change_.position = -1;
        sort_moves();
        return true;
      }
    }
    return false;
  }

  /// Some group of a device, to another one that has room for it.
  bool send_away(int from, int to) {
    const std::vector<int>& there = sequence_.on_device(from);
    if (to == from || there.empty()) return false;
    const int group = graph_.group[there[random_.below(static_cast<int>(there.size()))]];
    if (in_change(group) || !costs_.allowed(group, to)) return false;
    const std::size_t before = change_.moves.size();
    for (const int v : graph_.groups[group]) change_.moves.push_back({v, to});
    if (sequence_.over(change_, to) == 0) return true;
    change_.moves.resize(before);
    return false;
  }

  void sort_moves() {
    std::sort(change_.moves.begin(), change_.moves.end(), [&](const GraphMove& a, const GraphMove& b) {
      return sequence_.position(a.vertex) < sequence_.position(b.vertex);
    });
  }

  bool propose() {
    vertices_.clear();
    change_.moves.clear();
    change_.position = -1;
    const int at = random_.below(static_cast<int>(path_.size()));
    const Shares& of = options_.moves == GraphMoves::groups ? kGroups : kVertices;
    const int kind = random_.below(of.order + of.group + of.stretch + of.vertex);
    if (kind < of.order) return propose_order(path_[at]);
    if (kind < of.order + of.group) return propose_group(path_[at]);
    if (kind < of.order + of.group + of.stretch) return propose_stretch(at);
    return propose_vertex(path_[at]);
  }

  int any_device() {
    const int count = costs_.device_count();
    if (options_.moves == GraphMoves::groups) return random_.below(count);
    return costs_.by_speed()[random_.below(1 + random_.below(count))];  // the faster the likelier
  }

  /// Mostly a device that a neighbour in the graph uses.
  int other_device(int v) {
    const auto before = graph_.predecessors[v], after = graph_.successors[v];
    const int neighbours = static_cast<int>(before.size() + after.size());
    if (neighbours == 0 || random_.below(8) == 0) return any_device();
    const int n = random_.below(neighbours), inputs = static_cast<int>(before.size());
    return sequence_.device(n < inputs ? before[n] : after[n - inputs]);
  }

  bool propose_group(int v) {
    device_ = other_device(v);
    add_group(graph_.group[v]);
    return ready(sequence_.device(v));
  }

  /// A stretch of the critical path that runs on one device, to the device before or behind it or a
  /// neighbour's.
  bool propose_stretch(int from) {
    const int home = sequence_.device(path_[from]), longest = 2 + random_.below(20);
    int to = from;
    while (to < static_cast<int>(path_.size()) && to - from < longest && sequence_.device(path_[to]) == home)
      add_group(graph_.group[path_[to++]]);
    if (to < static_cast<int>(path_.size()) && random_.below(2) == 0)
      device_ = sequence_.device(path_[to]);
    else if (from > 0 && random_.below(2) == 0)
      device_ = sequence_.device(path_[from - 1]);
    else
      device_ = other_device(path_[from]);
    return ready(home);
  }

  /// Past one or several neighbours on its own device, as far as the graph allows.
  bool propose_order(int v) {
    const int first = sequence_.earliest_position(v), last = sequence_.latest_position(v);
    const bool back = random_.below(2) == 0;
    int passed = v;
    for (int steps = random_.below(3) > 0 ? 1 : 1 + random_.below(10); steps > 0; --steps) {
      const int next = back ? sequence_.device_previous(passed) : sequence_.device_next(passed);
      if (next < 0 || sequence_.position(next) < first || sequence_.position(next) > last) break;
      passed = next;
    }
    change_.moves.push_back({v, sequence_.device(v)});
    change_.position = sequence_.position(passed);
    return passed != v;
  }

  bool propose_vertex(int v) {
    if (graph_.groups[graph_.group[v]].size() > 1) return false;
    int first = std::max(sequence_.earliest_position(v), sequence_.scope_first());
    int last = std::min(sequence_.latest_position(v), sequence_.scope_last());
    if (random_.below(2) == 0) {
      first = std::max(first, sequence_.position(v) - 20);
      last = std::min(last, sequence_.position(v) + 20);
    }
    change_.position = first + random_.below(last - first + 1);
    device_ = other_device(v);
    add_group(graph_.group[v]);
    return ready(sequence_.device(v));
  }

  void add_group(int group) {
    for (const int v : graph_.groups[group]) vertices_.push_back(v);
  }

  /// The change that takes the vertices to the device; false where nothing would change or a kind forbids it.
  bool ready(int home) {
    if (device_ == home) return false;
    for (const int v : vertices_)
      if (!costs_.allowed(graph_.group[v], device_)) return false;
    std::sort(vertices_.begin(), vertices_.end(),
              [&](int a, int b) { return sequence_.position(a) < sequence_.position(b); });
    vertices_.erase(std::unique(vertices_.begin(), vertices_.end()), vertices_.end());
    for (const int v : vertices_) change_.moves.push_back({v, device_});
    return true;
  }

  const GraphCosts& costs_;
  const OperatorGraph& graph_;
  const GraphSearchOptions& options_;
  Random random_;
  GraphSequence sequence_;
  std::vector<int> path_;
  const Ticks threshold_start_;
  std::vector<int> vertices_;  ///< of a proposal, and
  int device_ = 0;             ///< where they shall go
  GraphChange change_;
  GraphSolution best_;
};

}  // namespace

// Three rounds, each four times as long as the one before and from its best: what a time limit cuts is a
// round, and the last whole one has cooled down.
GraphSolution improve(const GraphCosts& costs, const GraphSolution& start,
                      const GraphSearchOptions& options) {
  GraphSolution best = start;
  for (const int share : {1, 4, 16}) {
    GraphSearchOptions round = options;
    round.work = options.work / 21 * share;
    round.seed = options.seed * 31 + static_cast<std::uint64_t>(share);
    best = LocalSearch(costs, best, round).run();
  }
  return best;
}

}  // namespace ostinato::graph
