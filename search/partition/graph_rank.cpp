#include "search/partition/graph_rank.h"

#include <algorithm>

namespace ostinato {
namespace {

/// ceil(work * count / sum) in ticks: the time of `work` at the mean of `count` speeds whose sum is given.
Ticks at_mean(std::int64_t work, std::int64_t count, std::int64_t sum) {
  __extension__ using Wide = __int128;
  return static_cast<Ticks>((static_cast<Wide>(work) * kTicksPerUnit * count + sum - 1) / sum);
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

std::vector<Ticks> upward_ranks(const GraphCosts& costs, bool published_program) {
  const OperatorGraph& graph = costs.graph();
  const std::int64_t n = costs.device_count(), links = published_program ? n : n * (n - 1);
  std::int64_t speeds = 0, rates = 0;
  for (int from = 0; from < n; ++from) {
    speeds += costs.devices().devices[from].speed;
    for (int to = 0; to < n; ++to)
      if (from != to && (from == 0 || !published_program))
        rates += costs.devices().rates[static_cast<std::size_t>(from * n + to)];
  }
  std::vector<Ticks> rank(graph.size(), 0);
  for (auto v = graph.order.rbegin(); v != graph.order.rend(); ++v) {
    const Ticks transfer = n == 1 ? 0 : at_mean(graph.tensors[*v], links, rates);
    for (const int w : graph.successors[*v]) rank[*v] = std::max(rank[*v], rank[w] + transfer);
    rank[*v] += at_mean(graph.operations[*v], n, speeds);
  }
  return rank;
}

std::vector<int> critical_path(const OperatorGraph& graph, const std::vector<Ticks>& upward) {
  const auto lower = [&](int a, int b) { return upward[a] < upward[b]; };
  std::vector<int> sources;
  for (int v = 0; v < graph.size(); ++v)
    if (graph.predecessors[v].empty()) sources.push_back(v);
  std::vector<int> path{*std::max_element(sources.begin(), sources.end(), lower)};
  for (auto next = graph.successors[path.back()]; !next.empty(); next = graph.successors[path.back()])
    path.push_back(
        *std::max_element(next.begin(), next.end(), lower));  // one tensor size: the transfer is equal
  return path;
}

}  // namespace ostinato
