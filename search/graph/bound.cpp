// SPDX-License-Identifier: Apache-2.0
#include "search/graph/bound.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "search/graph/reach.h"
#include "search/graph/windows.h"
#include "search/graph/work.h"

namespace ostinato::graph {
namespace {

/// (Edges + vertices) * devices up to which paths are followed device by device: a second, and 500 MB.
constexpr double kMostPathRows = 2e7;
/// Times devices once more: up to which levels are looked at.
constexpr double kMostLevelRows = 4e8;
/// (Edges + vertices) * devices up to which windows are: a few seconds.
constexpr double kMostWindowRows = 2e6;

/// Vertices * (edges + vertices) up to which the work before and behind each is looked at: a few seconds.
constexpr double kMostWorkRows = 2e7;

/// Beyond this many vertices, vertices on paths below this share of the bound are not looked at further, and
/// windows are only seen on the way from the start.
constexpr int kAllMatter = 1000;
constexpr double kMatters = 0.98;

/// The longest path, and the vertices of every group one after the other, on the device that is best for it.
class PathBounds {
 public:
  PathBounds(const GraphCosts& costs, bool levels, bool windows, const std::function<bool()>& stop)
      : times_(costs),
        forwards_(times_, GraphReach::From::start, levels),
        backwards_(times_, GraphReach::From::end, levels) {
    forwards_.pass(stop);
    backwards_.pass(stop);
    if (levels && windows) {
      find_long_paths();
      if (times_.graph.size() <= kAllMatter) pass_windows(backwards_, forwards_, stop);
      pass_windows(forwards_, backwards_, stop);
    }
    const double size = times_.graph.size();
    if (size * (size + static_cast<double>(times_.graph.successors.values().size())) < kMostWorkRows)
      work_.emplace(times_, soonest(forwards_), soonest(backwards_), stop);
  }

  Ticks bound() {
    Ticks bound = work_ ? work_->makespan() : 0;
    for (int g = 0; g < times_.graph.groups.rows(); ++g) {
      Ticks lowest = kGraphNever;
      for (const int d : times_.domains[g]) lowest = std::min(lowest, group_bound(g, d));
      bound = std::max(bound, lowest);
    }
    return bound;
  }

 private:
  /// Vertices with a longest path of at least a share of the bound; all, if there are few.
  void find_long_paths() {
    const OperatorGraph& graph = times_.graph;
    std::vector<Ticks> shortest(graph.size(), kGraphNever);
    Ticks longest = 0;
    for (int v = 0; v < graph.size(); ++v) {
      for (const int d : times_.homes(v))
        shortest[v] = std::min(shortest[v], forwards_(v, d) + times_.duration(v, d) + backwards_(v, d));
      longest = std::max(longest, shortest[v]);
    }
    const double least = graph.size() > kAllMatter ? kMatters * static_cast<double>(longest) : 0;
    for (int v = 0; v < graph.size(); ++v)
      matters_.push_back(static_cast<double>(shortest[v]) >= least ? 1 : 0);
  }

  void pass_windows(GraphReach& reach, const GraphReach& other, const std::function<bool()>& stop) {
    GraphWindows windows(times_, reach, other, matters_);
    reach.pass(stop, [&](int v) { windows.look(v); });
  }

  /// On whichever device is best for it.
  std::vector<Ticks> soonest(const GraphReach& reach) const {
    std::vector<Ticks> soonest(times_.graph.size(), kGraphNever);
    for (int v = 0; v < times_.graph.size(); ++v)
      for (const int d : times_.homes(v)) soonest[v] = std::min(soonest[v], reach(v, d));
    return soonest;
  }

  Ticks group_bound(int group, int d) {
    Ticks bound = 0;
    releases_.clear();
    for (const int v : times_.graph.groups[group]) {
      Ticks release = forwards_(v, d), tail = backwards_(v, d);
      if (work_) release = std::max(release, work_->before(v)), tail = std::max(tail, work_->after(v));
      const Ticks duration = times_.duration(v, d);
      bound = std::max(bound, release + duration + tail);
      releases_.emplace_back(release, duration, tail);
    }
    if (releases_.size() == 1 || bound >= kGraphNever) return bound;
    std::sort(releases_.begin(), releases_.end());
    Ticks work = 0, least_tail = kGraphNever;
    for (auto r = releases_.rbegin(); r != releases_.rend(); ++r) {
      const auto& [release, duration, tail] = *r;
      work += duration;
      least_tail = std::min(least_tail, tail);
      bound = std::max(bound, release + work + least_tail);
    }
    return bound;
  }

  const GraphTimes times_;
  GraphReach forwards_, backwards_;
  std::optional<GraphWork> work_;
  std::vector<char> matters_;
  std::vector<std::tuple<Ticks, Ticks, Ticks>> releases_;
};

}  // namespace

Ticks simple_graph_bound(const GraphCosts& costs) {
  const OperatorGraph& graph = costs.graph();
  std::int64_t operations = 0, speeds = 0;
  for (const std::int64_t o : graph.operations) operations += o;
  for (const GraphDevice& d : costs.devices().devices) speeds += d.speed;
  auto bound = static_cast<Ticks>(static_cast<__int128>(operations) * kTicksPerUnit / speeds);
  if (costs.device_count() == 1) {  // one after the other
    bound = 0;
    for (int v = 0; v < graph.size(); ++v) bound += costs.execution(v, 0);
  }
  std::vector<int> fastest(graph.groups.rows());
  for (int g = 0; g < graph.groups.rows(); ++g) fastest[g] = costs.fastest(g);
  std::vector<Ticks> rest(graph.size(), 0);
  for (auto v = graph.order.rbegin(); v != graph.order.rend(); ++v) {
    for (const int w : graph.successors[*v]) rest[*v] = std::max(rest[*v], rest[w]);
    rest[*v] += costs.execution(*v, fastest[graph.group[*v]]);
    bound = std::max(bound, rest[*v]);
  }
  return bound;
}

Ticks graph_lower_bound(const GraphCosts& costs, const std::function<bool()>& stop) {
  const double rows = static_cast<double>(costs.graph().successors.values().size() + costs.graph().size()) *
                      costs.device_count();
  const Ticks simple = simple_graph_bound(costs);
  if (rows > kMostPathRows) return simple;
  const bool levels = rows * costs.device_count() < kMostLevelRows, windows = rows < kMostWindowRows;
  return std::max(simple, PathBounds(costs, levels, windows, stop).bound());
}

}  // namespace ostinato::graph
