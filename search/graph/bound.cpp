// SPDX-License-Identifier: Apache-2.0
#include "search/graph/bound.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "search/graph/cone.h"

namespace ostinato::graph {
namespace {

constexpr Ticks kNever = std::numeric_limits<Ticks>::max() / 2;

/// (Edges + vertices) * devices up to which paths are followed device by device: a second, and 500 MB.
constexpr double kMostPathRows = 2e7;

class PathBounds {
 public:
  /// `cones`: look at several levels at once (cone.h).
  PathBounds(const GraphCosts& costs, bool cones)
      : costs_(costs),
        graph_(costs.graph()),
        devices_(costs.device_count()),
        cones_(cones),
        domains_(graph_.groups.rows()),
        reach_(static_cast<std::size_t>(graph_.size()) * devices_, kNever),
        rest_(reach_.size(), kNever),
        arrivals_(graph_.predecessors.values().size() * devices_, 0),
        departures_(cones ? arrivals_.size() : 0, 0),
        after_(reach_.size(), kNever),
        shortest_(reach_.size(), 0),
        position_(graph_.size()),
        backwards_(graph_.size()) {
    durations_.reserve(reach_.size());
    for (int v = 0; v < graph_.size(); ++v)
      for (int d = 0; d < devices_; ++d) durations_.push_back(costs.execution(v, d));
    for (int p = 0; p < graph_.size(); ++p) {
      position_[graph_.order[p]] = p;
      backwards_[graph_.order[p]] = graph_.size() - p;
    }
    for (int g = 0; g < graph_.groups.rows(); ++g)
      for (int d = 0; d < devices_; ++d)
        if (costs.allowed(g, d)) domains_[g].push_back(d);
    std::map<std::int64_t, int> classes;
    for (std::size_t pair = 0; pair < costs.devices().rates.size(); ++pair) {
      const int from = static_cast<int>(pair) / devices_, to = static_cast<int>(pair) % devices_;
      const auto [at, added] =
          classes.emplace(from == to ? 0 : costs.devices().rates[pair], static_cast<int>(example_.size()));
      if (added) example_.emplace_back(from, to);
      rate_class_.push_back(at->second);
    }
    for (int to = 0; to < devices_; ++to)
      for (int from = 0; from < devices_; ++from)
        class_to_.push_back(rate_class_[static_cast<std::size_t>(from) * devices_ + to]);
    class_time_.resize(example_.size());
    sort_links();
  }

  Ticks bound() {
    forward();
    backward();
    Ticks bound = 0;
    for (int g = 0; g < graph_.groups.rows(); ++g) {
      Ticks lowest = kNever;
      for (const int d : domains_[g]) lowest = std::min(lowest, group_bound(g, d));
      bound = std::max(bound, lowest);
    }
    return bound;
  }

 private:
  struct Neighbour {
    Ticks remote;   ///< over a link, from the device that suits best
    Ticks release;  ///< on the same device, before its own execution
    Ticks duration;
  };

  std::size_t at(int v, int d) const { return static_cast<std::size_t>(v) * devices_ + d; }

  void tabulate_transfers(int v) {
    for (std::size_t c = 0; c < example_.size(); ++c)
      class_time_[c] = costs_.transfer(v, example_[c].first, example_[c].second);
  }

  void forward() {
    GraphCone cone({graph_.predecessors, graph_.group, position_, arrivals_, reach_, durations_, devices_},
                   graph_.size());
    std::vector<std::size_t> filled;
    for (int v = 0; v < graph_.size(); ++v) filled.push_back(graph_.predecessors.begin(v));
    for (const int v : graph_.order) {
      const auto inputs = graph_.predecessors[v];
      for (const int d : domains_[graph_.group[v]]) {
        neighbours_.clear();
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          const int u = inputs[i];
          const std::size_t edge = graph_.predecessors.begin(v) + i;
          neighbours_.push_back({arrivals_[edge * devices_ + d], reach_[at(u, d)], durations_[at(u, d)]});
        }
        reach_[at(v, d)] = cones_ ? cone.earliest(v, d, join()) : join();
      }
      send(v, filled);
    }
  }

  /// Of each device the others, the fastest link from it, and to it, first: for every tensor the shortest.
  void sort_links() {
    for (int d = 0; d < devices_; ++d) {
      std::vector<int> others;
      for (int e = 0; e < devices_; ++e)
        if (e != d) others.push_back(e);
      const auto rate = [&](int from, int to) {
        return costs_.devices().rates[static_cast<std::size_t>(from) * devices_ + to];
      };
      std::stable_sort(others.begin(), others.end(), [&](int a, int b) { return rate(d, a) > rate(d, b); });
      links_from_.insert(links_from_.end(), others.begin(), others.end());
      std::stable_sort(others.begin(), others.end(), [&](int a, int b) { return rate(a, d) > rate(b, d); });
      links_to_.insert(links_to_.end(), others.begin(), others.end());
    }
  }

  /// The least time[e] + (time of the class of e's link) over the devices e other than d. `by_time` has the
  /// devices where time[e] is not kNever, the shortest first, `by_link` all others, the fastest link first:
  /// from both at once, until what is behind either can only be longer (Fagin, Lotem, Naor, JCSS 2003).
  Ticks shortest_sum(int d, const int* by_time, int count, const int* by_link, const Ticks* time,
                     const int* link_class) const {
    const Ticks* link = class_time_.data();
    const int links = devices_ - 1;
    Ticks best = kNever;
    for (int i = 0; i < count; ++i) {
      const int near = by_time[i];
      const Ticks least = time[near];
      if (least >= best) break;
      if (near != d) best = std::min(best, least + link[link_class[near]]);
      if (i >= links) continue;
      const Ticks hop = link[link_class[by_link[i]]];
      best = std::min(best, time[by_link[i]] + hop);
      if (least + hop >= best) break;
    }
    return best;
  }

  const int* links_from(int d) const {
    return links_from_.data() + static_cast<std::ptrdiff_t>(d) * (devices_ - 1);
  }
  const int* links_to(int d) const {
    return links_to_.data() + static_cast<std::ptrdiff_t>(d) * (devices_ - 1);
  }

  /// Earliest arrival over a link of v's tensor at every device that a successor may use.
  void send(int v, std::vector<std::size_t>& filled) {
    tabulate_transfers(v);
    ready_.assign(devices_, kNever);
    soonest_ = domains_[graph_.group[v]];
    for (const int from : soonest_) ready_[from] = reach_[at(v, from)] + durations_[at(v, from)];
    std::sort(soonest_.begin(), soonest_.end(),
              [&](int a, int b) { return std::pair(ready_[a], a) < std::pair(ready_[b], b); });
    row_.resize(devices_);
    for (int to = 0; to < devices_; ++to)
      row_[to] = shortest_sum(to, soonest_.data(), static_cast<int>(soonest_.size()), links_to(to),
                              ready_.data(), &class_to_[static_cast<std::size_t>(to) * devices_]);
    for (const int w : graph_.successors[v])
      std::copy(row_.begin(), row_.end(),
                arrivals_.begin() + static_cast<std::ptrdiff_t>(filled[w]++) * devices_);
  }

  void backward() {
    GraphCone cone({graph_.successors, graph_.group, backwards_, departures_, after_, durations_, devices_},
                   graph_.size());
    for (auto p = graph_.order.rbegin(); p != graph_.order.rend(); ++p) {
      const int v = *p;
      tabulate_transfers(v);
      for (const int d : domains_[graph_.group[v]]) {
        neighbours_.clear();
        std::size_t edge = graph_.successors.begin(v);
        for (const int w : graph_.successors[v]) {
          const Ticks remote = shortest_sum(
              d, &shortest_[at(w, 0)], static_cast<int>(domains_[graph_.group[w]].size()), links_from(d),
              &rest_[at(w, 0)], &rate_class_[static_cast<std::size_t>(d) * devices_]);
          neighbours_.push_back({remote, after_[at(w, d)], durations_[at(w, d)]});
          if (cones_) departures_[edge++ * devices_ + d] = remote;
        }
        after_[at(v, d)] = cones_ ? cone.earliest(v, d, join()) : join();
        rest_[at(v, d)] = durations_[at(v, d)] + after_[at(v, d)];
      }
      const auto& homes = domains_[graph_.group[v]];
      const auto begin = shortest_.begin() + static_cast<std::ptrdiff_t>(at(v, 0));
      const auto end = std::copy(homes.begin(), homes.end(), begin);
      std::sort(begin, end,
                [&](int a, int b) { return std::pair(rest_[at(v, a)], a) < std::pair(rest_[at(v, b)], b); });
    }
  }

  /// Some neighbours are on the same device, one after the other, the others come over links: the least of
  /// the latest. The best set to have here is, for some k, the k whose transfers end last.
  Ticks join() {
    if (neighbours_.size() > 1)
      std::sort(neighbours_.begin(), neighbours_.end(),
                [](const Neighbour& a, const Neighbour& b) { return a.remote > b.remote; });
    Ticks best = kNever;
    for (std::size_t here = 0; here <= neighbours_.size(); ++here) {
      const Ticks away = here < neighbours_.size() ? neighbours_[here].remote : 0;
      const Ticks together = in_sequence(here);
      best = std::min(best, std::max(away, together));
      if (together >= away || together >= kNever) break;  // more here only takes longer
    }
    return best;
  }

  Ticks in_sequence(std::size_t count) {
    if (count == 0) return 0;
    if (count == 1) return std::max<Ticks>(0, neighbours_[0].release) + neighbours_[0].duration;
    sequence_.assign(neighbours_.begin(), neighbours_.begin() + static_cast<std::ptrdiff_t>(count));
    std::sort(sequence_.begin(), sequence_.end(),
              [](const Neighbour& a, const Neighbour& b) { return a.release < b.release; });
    Ticks end = 0;
    for (const Neighbour& n : sequence_) end = std::max(end, n.release) + n.duration;
    return end;
  }

  Ticks group_bound(int group, int d) {
    Ticks bound = 0;
    releases_.clear();
    for (const int v : graph_.groups[group]) {
      bound = std::max(bound, reach_[at(v, d)] + rest_[at(v, d)]);
      releases_.emplace_back(reach_[at(v, d)], durations_[at(v, d)], rest_[at(v, d)]);
    }
    if (releases_.size() == 1 || bound >= kNever) return bound;
    std::sort(releases_.begin(), releases_.end());
    Ticks work = 0, tail = kNever;
    for (auto r = releases_.rbegin(); r != releases_.rend(); ++r) {
      const auto& [release, duration, rest] = *r;
      work += duration;
      tail = std::min(tail, rest - duration);
      bound = std::max(bound, release + work + tail);
    }
    return bound;
  }

  const GraphCosts& costs_;
  const OperatorGraph& graph_;
  const int devices_;
  const bool cones_;
  std::vector<std::vector<int>> domains_;   ///< devices that may hold each group, ascending
  std::vector<Ticks> reach_, rest_;         ///< [vertex][device], kNever outside the domains
  std::vector<Ticks> arrivals_;             ///< [incoming edge][device]
  std::vector<Ticks> departures_;           ///< [outgoing edge][device]: over a link, to the end of all
  std::vector<Ticks> after_;                ///< [vertex][device]: rest_ without the vertex itself
  std::vector<int> shortest_;               ///< [vertex]: its domain by rest_
  std::vector<Ticks> durations_;            ///< [vertex][device]
  std::vector<int> position_, backwards_;   ///< in the topological order, from either end
  std::vector<int> rate_class_, class_to_;  ///< [from][to], [to][from]
  std::vector<std::pair<int, int>> example_;
  std::vector<Ticks> class_time_;
  std::vector<int> links_from_, links_to_;  ///< [device]: the others, the fastest link first
  std::vector<Ticks> ready_;                ///< of one vertex: its end on each device
  std::vector<int> soonest_;                ///< its domain by ready_
  std::vector<Ticks> row_;                  ///< its arrival at each device
  std::vector<Neighbour> neighbours_, sequence_;
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

Ticks graph_lower_bound(const GraphCosts& costs) {
  const double rows = static_cast<double>(costs.graph().successors.values().size() + costs.graph().size()) *
                      costs.device_count();
  const Ticks simple = simple_graph_bound(costs);
  return rows > kMostPathRows
             ? simple
             : std::max(simple, PathBounds(costs, rows * costs.device_count() < 4e8).bound());
}

}  // namespace ostinato::graph
