// SPDX-License-Identifier: Apache-2.0
#include "search/graph/strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "search/files/error.h"
#include "search/files/nearest.h"
#include "search/graph/loads.h"
#include "search/graph/open_order.h"
#include "search/graph/rank.h"

namespace ostinato::graph {
namespace {

/// In the published program groups of several vertices stand in a hash table.
void order_as_table(const OperatorGraph& graph, std::vector<int>& groups) {
  std::sort(groups.begin(), groups.end(), [&](int a, int b) {
    return std::pair(graph.group_place[a], a) < std::pair(graph.group_place[b], b);
  });
}

/// Groups of several vertices first: they are the hardest to place.
std::vector<int> groups_first(const OperatorGraph& graph, const StrategyOptions& options) {
  const std::vector<int> order = open_order(graph.groups.rows(), options.seed);
  std::vector<int> several, single;
  for (const int g : order) (graph.groups[g].size() > 1 ? several : single).push_back(g);
  if (options.published_program) order_as_table(graph, several);
  several.insert(several.end(), single.begin(), single.end());
  return several;
}

/// The first device that fits, from position `first` of `devices` on and round again; -1: none.
int next_fitting(const GraphLoads& loads, int group, const std::vector<int>& devices, int first) {
  const int n = static_cast<int>(devices.size());
  for (int i = 0; i < n; ++i)
    if (loads.fits(group, devices[(first + i) % n])) return devices[(first + i) % n];
  return -1;
}

void assign_hash(GraphLoads& loads, const StrategyOptions& options) {
  const std::vector<int> devices = open_order(loads.costs().device_count(), 0);
  int turn = 0;
  for (const int g : groups_first(loads.costs().graph(), options))
    if (!loads.assign(g, next_fitting(loads, g, devices, turn++ % static_cast<int>(devices.size())))) return;
}

void assign_batch_split(GraphLoads& loads, const StrategyOptions& options) {
  const GraphCosts& costs = loads.costs();
  const OperatorGraph& graph = costs.graph();
  const std::int64_t n = costs.device_count();
  const std::vector<int> devices =
      options.published_program ? open_order(costs.device_count(), 0) : costs.by_speed();
  const std::vector<std::int64_t> importance = path_operations(graph);
  std::vector<int> order = open_order(graph.size(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return importance[a] > importance[b]; });
  for (int i = 0; i < graph.size(); ++i) {
    if (loads.assigned(order[i])) continue;
    const int g = graph.group[order[i]], batch = static_cast<int>(i * n / graph.size());
    if (!loads.assign(g, next_fitting(loads, g, devices, batch))) return;
  }
}

/// Fastest device that fits; the published program looks at every second one only.
int fastest_fitting(const GraphLoads& loads, int group, bool every_second) {
  const std::vector<int>& devices = loads.costs().by_speed();
  for (std::size_t i = 0; i < devices.size(); i += every_second ? 2 : 1)
    if (loads.fits(group, devices[i])) return devices[i];
  return -1;
}

int least_loaded(const GraphLoads& loads, int group) {
  int best = -1;
  for (int d = 0; d < loads.costs().device_count(); ++d)
    if (loads.fits(group, d) && (best < 0 || loads.load(d) < loads.load(best))) best = d;
  return best;
}

std::vector<int> published_critical_path(const GraphCosts& costs, std::uint64_t seed) {
  const PublishedRanks ranks = published_upward_ranks(costs, seed);
  int first = -1;
  for (const int v : open_order(costs.graph().size(), seed))
    if (costs.graph().predecessors[v].empty() && (first < 0 || ranks.rank[first] < ranks.rank[v])) first = v;
  std::vector<int> path;
  for (int v = first; v >= 0; v = ranks.next[v]) path.push_back(v);
  return path;
}

void assign_critical_path(GraphLoads& loads, const StrategyOptions& options) {
  const OperatorGraph& graph = loads.costs().graph();
  for (const int v : options.published_program ? published_critical_path(loads.costs(), options.seed)
                                               : critical_path(graph, upward_ranks(loads.costs()))) {
    const int g = graph.group[v];
    if (!loads.assigned(v) && !loads.assign(g, fastest_fitting(loads, g, options.published_program))) return;
  }
  for (const int v : open_order(graph.size(), options.seed))
    if (!loads.assigned(v) && !loads.assign(graph.group[v], least_loaded(loads, graph.group[v]))) return;
}

/// The product that MITE and DFS minimise. Each factor is made relative over the devices that fit; a factor
/// of 0 would hide the rest, so it counts as a millionth.
class Product {
 public:
  Product(const GraphLoads& loads, const StrategyOptions& options, bool with_memory_and_importance)
      : loads_(loads),
        published_(options.published_program),
        four_(with_memory_and_importance),
        importance_(path_operations(loads.costs().graph())),
        longest_(static_cast<double>(*std::max_element(importance_.begin(), importance_.end()))),
        place_(open_order(loads.costs().graph().size(), options.seed + 1)) {}

  const std::vector<std::int64_t>& importance() const { return importance_; }

  int best_device(int group) {
    devices_.clear();
    for (int d = 0; d < loads_.costs().device_count(); ++d)
      if (loads_.fits(group, d)) devices_.push_back({d, traffic(group, d), execution(group, d), memory(d)});
    double traffic_scale = 0, execution_scale = 0, least_memory = 1, fastest = 0;
    for (const Factors& f : devices_) {
      traffic_scale = std::max(traffic_scale, f.traffic);
      execution_scale = std::max(execution_scale, f.execution);
      if (f.memory > 0) least_memory = std::min(least_memory, f.memory);
      fastest = std::max(fastest, speed(f.device));
    }
    int best = -1;
    double lowest = 0;
    const double importance = four_ ? group_importance(group) : 0;
    for (const Factors& f : devices_) {
      double product = relative(f.traffic, traffic_scale) * relative(f.execution, execution_scale);
      if (four_) {
        product *= relative(1 - importance * speed(f.device) / fastest, 1);
        product *= f.memory > 0 ? f.memory : least_memory / 10;
      }
      if (best < 0 || product < lowest) best = f.device, lowest = product;
    }
    return best;
  }

 private:
  struct Factors {
    int device;
    double traffic, execution, memory;
  };

  static double relative(double value, double scale) {
    if (scale <= 0) return 1;
    return value > 0 ? value / scale : 1e-6;
  }
  double speed(int d) const { return static_cast<double>(loads_.costs().devices().devices[d].speed); }
  double memory(int d) const {
    return static_cast<double>(loads_.used_memory(d)) /
           static_cast<double>(std::max<std::int64_t>(1, loads_.costs().devices().devices[d].memory));
  }
  double execution(int group, int d) const {
    return static_cast<double>(loads_.load(d, loads_.costs().graph().group_operations[group]));
  }
  double group_importance(int group) const {
    double sum = 0;
    const auto vertices = loads_.costs().graph().groups[group];
    for (const int v : vertices) sum += static_cast<double>(importance_[v]);
    return longest_ > 0 ? sum / longest_ / static_cast<double>(vertices.size()) : 0;
  }

  /// Transfer times to and from the vertices that already have another device.
  double traffic(int group, int d) {
    double sum = 0;
    for (const int v : loads_.costs().graph().groups[group]) sum += incoming(v, d) + outgoing(v, d);
    return sum;
  }
  double whole(Ticks time) const {
    return static_cast<double>(published_ ? time / kTicksPerUnit * kTicksPerUnit : time);
  }
  double incoming(int v, int d) const {
    double sum = 0;
    for (const int u : loads_.costs().graph().predecessors[v])
      if (loads_.assigned(u) && !(published_ && feeds_its_number(u, d)))
        sum += whole(loads_.costs().transfer(u, loads_.device(u), d));
    return sum;
  }
  /// The published program compares the ids of vertices with the device's.
  bool feeds_its_number(int u, int d) const {
    const OperatorGraph& graph = loads_.costs().graph();
    const auto successors = graph.successors[u];
    return std::any_of(successors.begin(), successors.end(),
                       [&](int w) { return graph.ids[w] == loads_.costs().devices().devices[d].id; });
  }
  /// That program counts one of the successors elsewhere, the first in the order of a set.
  double first_outgoing(int v, int d) const {
    int first = -1;
    for (const int w : loads_.costs().graph().successors[v])
      if (loads_.assigned(w) && loads_.device(w) != d && (first < 0 || place_[w] < place_[first])) first = w;
    return first < 0 ? 0 : whole(loads_.costs().transfer(v, d, loads_.device(first)));
  }
  double outgoing(int v, int d) {
    if (published_) return first_outgoing(v, d);
    double sum = 0;
    targets_.clear();
    for (const int w : loads_.costs().graph().successors[v]) {
      const int to = loads_.device(w);
      if (to < 0 || to == d || std::find(targets_.begin(), targets_.end(), to) != targets_.end()) continue;
      sum += whole(loads_.costs().transfer(v, d, to));
      targets_.push_back(to);
    }
    return sum;
  }

  const GraphLoads& loads_;
  const bool published_, four_;
  const std::vector<std::int64_t> importance_;
  const double longest_;
  const std::vector<int> place_;  ///< of each vertex in an order that the program leaves to chance
  std::vector<Factors> devices_;
  std::vector<int> targets_;
};

void assign_mite(GraphLoads& loads, const StrategyOptions& options) {
  Product product(loads, options, true);
  for (const int g : groups_first(loads.costs().graph(), options))
    if (!loads.assign(g, product.best_device(g))) return;
}

void assign_dfs(GraphLoads& loads, const StrategyOptions& options) {
  const OperatorGraph& graph = loads.costs().graph();
  Product product(loads, options, false);
  std::vector<int> stack;
  const std::vector<int> open = open_order(graph.size(), options.seed);
  for (const int v : open)
    if (graph.predecessors[v].empty()) stack.push_back(v);
  std::stable_sort(stack.begin(), stack.end(),
                   [&](int a, int b) { return product.importance()[a] > product.importance()[b]; });
  std::reverse(stack.begin(), stack.end());  // the longest is popped first
  std::vector<char> visited(graph.size(), 0);
  while (!stack.empty()) {
    const int v = stack.back();
    stack.pop_back();
    if (std::exchange(visited[v], 1)) continue;
    if (!loads.assigned(v) && !loads.assign(graph.group[v], product.best_device(graph.group[v]))) return;
    const std::size_t below = stack.size();
    for (const int w : graph.successors[v])
      if (!visited[w]) stack.push_back(w);
    std::sort(stack.begin() + static_cast<std::ptrdiff_t>(below), stack.end(),
              [&](int a, int b) { return open[a] > open[b]; });
  }
}

constexpr std::array<const char*, 6> kNames = {"hash", "batch-split", "critical-path", "mite", "dfs", "heft"};

}  // namespace

const char* to_string(GraphStrategy strategy) { return kNames[static_cast<std::size_t>(strategy)]; }

GraphStrategy parse_graph_strategy(std::string_view word) {
  for (const GraphStrategy s : kGraphStrategies)
    if (word == to_string(s)) return s;
  const std::string near = nearest(word, kNames);
  throw InputError(
      "", 0,
      fmt::format("unknown strategy \"{}\"{}; known are {} and best", word,
                  near.empty() ? "" : fmt::format(" (did you mean {}?)", near), fmt::join(kNames, ", ")));
}

GraphPartition partition(const GraphCosts& costs, GraphStrategy strategy, const StrategyOptions& options) {
  GraphLoads loads(costs);
  switch (strategy) {
    case GraphStrategy::hash:
      assign_hash(loads, options);
      break;
    case GraphStrategy::batch_split:
      assign_batch_split(loads, options);
      break;
    case GraphStrategy::critical_path:
      assign_critical_path(loads, options);
      break;
    case GraphStrategy::mite:
      assign_mite(loads, options);
      break;
    case GraphStrategy::dfs:
      assign_dfs(loads, options);
      break;
    case GraphStrategy::heft:
      return partition_heft(costs, std::vector<char>(costs.device_count(), 1), options);
  }
  return {loads.take(), {}, loads.reason()};
}

}  // namespace ostinato::graph
