// SPDX-License-Identifier: Apache-2.0
#include "search/graph/rank.h"

#include <algorithm>

#include "search/graph/open_order.h"

namespace ostinato::graph {
namespace {

/// ceil(work * count / sum) in ticks: the time of `work` at the mean of `count` speeds with this sum.
Ticks at_mean(std::int64_t work, std::int64_t count, std::int64_t sum) {
  __extension__ using Wide = __int128;
  return static_cast<Ticks>((static_cast<Wide>(work) * kTicksPerUnit * count + sum - 1) / sum);
}

/// Of each vertex: its execution and its transfer at the mean of the devices.
class MeanTimes {
 public:
  /// `first_device`: the mean rate is the first device's, including to itself at rate 0.
  MeanTimes(const GraphCosts& costs, bool first_device)
      : graph_(costs.graph()), devices_(costs.device_count()) {
    links_ = first_device ? devices_ : devices_ * (devices_ - 1);
    for (int from = 0; from < devices_; ++from) {
      speeds_ += costs.devices().devices[from].speed;
      for (int to = 0; to < devices_; ++to)
        if (from != to && (from == 0 || !first_device)) rates_ += costs.devices().rates[from * devices_ + to];
    }
  }
  Ticks execution(int v) const { return at_mean(graph_.operations[v], devices_, speeds_); }
  Ticks transfer(int v) const { return devices_ == 1 ? 0 : at_mean(graph_.tensors[v], links_, rates_); }

 private:
  const OperatorGraph& graph_;
  const std::int64_t devices_;
  std::int64_t links_ = 0, speeds_ = 0, rates_ = 0;
};

std::vector<int> inverse(const std::vector<int>& order) {
  std::vector<int> place(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int>(i);
  return place;
}

}  // namespace

std::vector<std::int64_t> path_operations(const OperatorGraph& graph) {
  std::vector<std::int64_t> before(graph.size(), 0), length(graph.size(), 0);
  for (const int v : graph.order)
    for (const int w : graph.successors[v]) before[w] = std::max(before[w], before[v] + graph.operations[v]);
  for (auto v = graph.order.rbegin(); v != graph.order.rend(); ++v) {  // length: from the vertex to a sink
    for (const int w : graph.successors[*v]) length[*v] = std::max(length[*v], length[w]);
    length[*v] += graph.operations[*v];
  }
  for (int v = 0; v < graph.size(); ++v) length[v] += before[v];
  return length;
}

std::vector<Ticks> upward_ranks(const GraphCosts& costs) {
  const OperatorGraph& graph = costs.graph();
  const MeanTimes mean(costs, false);
  std::vector<Ticks> rank(graph.size(), 0);
  for (auto v = graph.order.rbegin(); v != graph.order.rend(); ++v) {
    for (const int w : graph.successors[*v]) rank[*v] = std::max(rank[*v], rank[w] + mean.transfer(*v));
    rank[*v] += mean.execution(*v);
  }
  return rank;
}

PublishedRanks published_upward_ranks(const GraphCosts& costs, std::uint64_t seed) {
  const OperatorGraph& graph = costs.graph();
  const MeanTimes mean(costs, true);
  const std::vector<int> walked = open_order(graph.size(), seed), place = inverse(walked);
  PublishedRanks ranks{std::vector<Ticks>(graph.size(), 0), std::vector<int>(graph.size(), -1)};
  std::vector<int> missing(graph.size());
  for (int v = 0; v < graph.size(); ++v) missing[v] = static_cast<int>(graph.successors[v].size());
  std::vector<std::vector<int>> told;  // of each vertex under way: its predecessors, the next to tell last
  std::vector<int> under_way;
  const auto done = [&](int v) {
    ranks.rank[v] += mean.execution(v);
    under_way.push_back(v);
    const auto inputs = graph.predecessors[v];
    told.emplace_back(inputs.begin(), inputs.end());
    std::sort(told.back().begin(), told.back().end(), [&](int a, int b) { return place[a] > place[b]; });
  };
  for (const int sink : walked) {
    if (!graph.successors[sink].empty()) continue;
    done(sink);
    while (!under_way.empty()) {
      if (told.back().empty()) {
        told.pop_back();
        under_way.pop_back();
        continue;
      }
      const int v = under_way.back(), u = told.back().back();
      told.back().pop_back();
      if (ranks.rank[u] < ranks.rank[v]) {
        ranks.rank[u] = ranks.rank[v] + mean.transfer(u);
        ranks.next[u] = v;
      }
      if (--missing[u] == 0) done(u);
    }
  }
  return ranks;
}

std::vector<int> critical_path(const OperatorGraph& graph, const std::vector<Ticks>& upward) {
  const auto lower = [&](int a, int b) { return upward[a] < upward[b]; };
  std::vector<int> sources;
  for (int v = 0; v < graph.size(); ++v)
    if (graph.predecessors[v].empty()) sources.push_back(v);
  std::vector<int> path{*std::max_element(sources.begin(), sources.end(), lower)};
  for (auto next = graph.successors[path.back()]; !next.empty(); next = graph.successors[path.back()])
    // One tensor size: the transfer is equal.
    path.push_back(*std::max_element(next.begin(), next.end(), lower));
  return path;
}

}  // namespace ostinato::graph
