// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <queue>
#include <unordered_map>
#include <utility>

#include "search/files/error.h"
#include "search/graph/graph.h"

namespace ostinato::graph {
namespace {

using Pairs = std::vector<std::pair<int, int>>;

/// Index of each vertex by its id in the file.
class Ids {
 public:
  Ids(const std::vector<GraphVertex>& rows, const std::string& source) : source_(source) {
    index_.reserve(rows.size());
    for (const GraphVertex& row : rows) {
      const auto [at, added] = index_.emplace(row.id, static_cast<int>(index_.size()));
      if (!added)
        throw InputError(
            source, row.line,
            fmt::format("vertex {} is given twice, first in line {}", row.id, rows[at->second].line));
    }
  }

  int at(std::int64_t id, const GraphVertex& row, const char* role) const {
    const auto found = index_.find(id);
    if (found != index_.end()) return found->second;
    throw InputError(source_, row.line,
                     fmt::format("vertex {} names {} as {}, but no row has that id", row.id, id, role));
  }

 private:
  const std::string& source_;
  std::unordered_map<std::int64_t, int> index_;
};

Pairs collect_edges(const std::vector<GraphVertex>& rows, const Ids& ids, const std::string& source) {
  Pairs edges;
  for (int v = 0; v < static_cast<int>(rows.size()); ++v) {
    const GraphVertex& row = rows[v];
    for (const std::int64_t id : row.before) edges.emplace_back(v, ids.at(id, row, "a successor"));
    for (const std::int64_t id : row.after) edges.emplace_back(ids.at(id, row, "a predecessor"), v);
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  for (const auto& [from, to] : edges)
    if (from == to)
      throw InputError(source, rows[from].line, fmt::format("vertex {} follows itself", rows[from].id));
  return edges;
}

/// One cycle among the vertices that were never ready, as "2 -> 3 -> 2".
[[noreturn]] void refuse_cycle(const OperatorGraph& graph, const std::vector<int>& missing) {
  std::vector<int> step_at(graph.size(), -1), walk;
  int v = 0;
  while (missing[v] == 0) ++v;
  while (step_at[v] < 0) {  // against the edges: each unfinished vertex waits for another one
    step_at[v] = static_cast<int>(walk.size());
    walk.push_back(v);
    const auto inputs = graph.predecessors[v];
    v = *std::find_if(inputs.begin(), inputs.end(), [&](int u) { return missing[u] > 0; });
  }
  std::string text = std::to_string(graph.ids[v]);
  for (int i = static_cast<int>(walk.size()) - 1; i >= step_at[v]; --i)
    text += fmt::format(" -> {}", graph.ids[walk[i]]);
  throw InputError(graph.source, graph.lines[v], fmt::format("the graph has a cycle: {}", text));
}

void sort_topologically(OperatorGraph& graph) {
  std::vector<int> missing(graph.size());
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int v = 0; v < graph.size(); ++v) {
    missing[v] = static_cast<int>(graph.predecessors[v].size());
    if (missing[v] == 0) ready.push(v);
  }
  while (!ready.empty()) {
    const int v = ready.top();
    ready.pop();
    graph.order.push_back(v);
    for (const int w : graph.successors[v])
      if (--missing[w] == 0) ready.push(w);
  }
  if (static_cast<int>(graph.order.size()) < graph.size()) refuse_cycle(graph, missing);
}

/// Joins what is named together; the smallest vertex stands for its set. `filed`, at that vertex: where the
/// published program's table holds the set. It reads row by row, and sees those of the rows before.
class Together {
 public:
  Together(const std::vector<GraphVertex>& rows, const Ids& ids)
      : rows_(rows), ids_(ids), parent_(rows.size()), filed_(rows.size()) {
    std::iota(parent_.begin(), parent_.end(), 0);
    std::vector<int> order = parent_;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return rows[a].line < rows[b].line; });
    for (const int v : order) file(v);
    for (const int v : order)
      for (const std::int64_t id : rows[v].together) join(v, at(v, id));
  }

  int root(int v) {
    while (parent_[v] != v) v = parent_[v] = parent_[parent_[v]];
    return v;
  }

  /// (place, how many were filed before it): a table never shrinks, and at a place the first filed is first.
  std::pair<std::int64_t, int> place(int v) {
    const Filed& set = filed_[root(v)];
    return set.id < 0 ? std::pair(rows_[v].id, 0) : std::pair(set.id % table_size(most_), set.after);
  }

 private:
  int at(int v, std::int64_t id) const { return ids_.at(id, rows_[v], "a vertex on the same device"); }
  void join(int v, int w) {
    const int a = root(v), b = root(w);
    parent_[std::max(a, b)] = std::min(a, b);
  }

  /// The id that a set is filed under, and how many had been filed before it; id -1: not filed.
  struct Filed {
    std::int64_t id = -1;
    int after = 0;
  };

  /// Its set is filed under the id of the first that it names, in the order of a table, unless that has a
  /// set. The sets of the rest that it names are taken out of the table.
  void file(int v) {
    const std::int64_t places = table_size(rows_[v].together.size());
    int first = -1;
    std::vector<int> before;
    for (const std::int64_t id : rows_[v].together)
      if (const int w = at(v, id); rows_[w].line < rows_[v].line) before.push_back(w);
    for (const int w : before)
      if (first < 0 || rows_[w].id % places < rows_[first].id % places) first = w;
    if (first < 0) return;
    Filed kept = filed_[root(first)];
    if (kept.id < 0) {
      kept = {rows_[first].id, total_++};
      most_ = std::max(most_, ++now_);
    }
    join(v, first);
    for (const int w : before) {
      if (root(w) == root(v)) continue;
      if (filed_[root(w)].id >= 0) --now_;
      join(v, w);
    }
    filed_[root(v)] = kept;
  }

  const std::vector<GraphVertex>& rows_;
  const Ids& ids_;
  std::vector<int> parent_;
  std::vector<Filed> filed_;
  int total_ = 0, now_ = 0, most_ = 0;  ///< sets filed ever, in the table now, and at most
};

int kind_index(OperatorGraph& graph, const std::string& kind) {
  const auto found = std::find(graph.kinds.begin(), graph.kinds.end(), kind);
  if (found != graph.kinds.end()) return static_cast<int>(found - graph.kinds.begin());
  graph.kinds.push_back(kind);
  return static_cast<int>(graph.kinds.size()) - 1;
}

void merge_kinds(OperatorGraph& graph, const std::vector<GraphVertex>& rows) {
  graph.group_kind.assign(graph.groups.rows(), -1);
  std::vector<int> asked_by(graph.groups.rows(), -1);
  for (int v = 0; v < graph.size(); ++v) {
    if (rows[v].kind.empty()) continue;
    const int g = graph.group[v], kind = kind_index(graph, rows[v].kind);
    if (graph.group_kind[g] >= 0 && graph.group_kind[g] != kind)
      throw InputError(
          graph.source, rows[v].line,
          fmt::format("vertex {} needs a {}, but must share a device with vertex {} (line {}), which "
                      "needs a {}",
                      rows[v].id, rows[v].kind, rows[asked_by[g]].id, rows[asked_by[g]].line,
                      graph.kinds[graph.group_kind[g]]));
    graph.group_kind[g] = kind;
    asked_by[g] = v;
  }
}

void form_groups(OperatorGraph& graph, const std::vector<GraphVertex>& rows, const Ids& ids) {
  Together together(rows, ids);
  graph.group.assign(graph.size(), -1);
  int groups = 0;
  Pairs members;
  for (int v = 0; v < graph.size(); ++v) {
    const int leader = together.root(v);
    graph.group[v] = leader == v ? groups++ : graph.group[leader];
    if (leader == v) graph.group_place.push_back(together.place(v));
    members.emplace_back(graph.group[v], v);
  }
  graph.groups = Lists<int>::from_pairs(groups, members);
  merge_kinds(graph, rows);
  graph.group_operations.assign(groups, 0);
  graph.group_memory.assign(groups, 0);
  for (int v = 0; v < graph.size(); ++v) {
    graph.group_operations[graph.group[v]] += graph.operations[v];
    graph.group_memory[graph.group[v]] += graph.memory[v];
  }
}

void check_range(std::int64_t number, std::int64_t limit, const char* what, const GraphVertex& row,
                 const std::string& source) {
  if (number < 0 || number > limit)
    throw InputError(
        source, row.line,
        fmt::format("vertex {}: {} is {}; it must be between 0 and {}", row.id, what, number, limit));
}

}  // namespace

std::int64_t table_size(std::size_t keys) {
  std::int64_t places = 16;
  while (places * 3 < static_cast<std::int64_t>(keys) * 4) places *= 2;
  return places;
}

OperatorGraph build_graph(std::vector<GraphVertex> rows, const std::string& source) {
  OperatorGraph graph;
  graph.source = source;
  if (rows.empty()) throw InputError(source, 0, "the graph has no vertices");
  std::stable_sort(rows.begin(), rows.end(),
                   [](const GraphVertex& a, const GraphVertex& b) { return a.id < b.id; });
  for (const GraphVertex& row : rows) {
    check_range(row.tensor, kMaxGraphNumber, "the tensor size", row, source);
    check_range(row.operations, kMaxGraphNumber, "the number of operations", row, source);
    check_range(row.memory, kMaxGraphNumber, "the memory", row, source);
    graph.ids.push_back(row.id);
    graph.operations.push_back(row.operations);
    graph.tensors.push_back(row.tensor);
    graph.memory.push_back(row.memory + row.tensor);
    graph.lines.push_back(row.line);
  }
  const Ids ids(rows, source);
  Pairs edges = collect_edges(rows, ids, source);
  graph.successors = Lists<int>::from_pairs(graph.size(), edges);
  for (auto& [from, to] : edges) std::swap(from, to);
  graph.predecessors = Lists<int>::from_pairs(graph.size(), edges);
  sort_topologically(graph);
  for (const auto& [to, from] : edges) graph.memory[to] += graph.tensors[from];
  form_groups(graph, rows, ids);
  for (GraphVertex& row : rows) graph.names.push_back(std::move(row.name));
  return graph;
}

}  // namespace ostinato::graph
