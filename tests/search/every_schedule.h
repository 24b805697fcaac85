// SPDX-License-Identifier: Apache-2.0
#pragma once
// The shortest schedule of a tiny operator graph: every assignment, and every order in which its vertices can
// be started, each as early as possible.

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "search/graph/graph.h"

namespace ostinato::test {

using namespace ostinato::graph;

/// Of one assignment; `best` where none is shorter.
inline Ticks shortest_schedule(const GraphCosts& costs, const Assignment& where, Ticks best) {
  const OperatorGraph& g = costs.graph();
  std::vector<Ticks> end(g.size(), -1), free_at(costs.device_count(), 0);
  const std::function<void(int, Ticks)> add = [&](int placed, Ticks longest) {
    if (longest >= best) return;
    if (placed == g.size()) {
      best = longest;
      return;
    }
    for (int v = 0; v < g.size(); ++v) {
      if (end[v] >= 0) continue;
      Ticks start = free_at[where[v]];
      bool ready = true;
      for (const int u : g.predecessors[v]) {
        ready &= end[u] >= 0;
        if (ready) start = std::max(start, end[u] + costs.transfer(u, where[u], where[v]));
      }
      if (!ready) continue;
      const Ticks before = free_at[where[v]];
      end[v] = free_at[where[v]] = start + costs.execution(v, where[v]);
      add(placed + 1, std::max(longest, end[v]));
      end[v] = -1;
      free_at[where[v]] = before;
    }
  };
  add(0, 0);
  return best;
}

/// Over all assignments, too; the largest number where none keeps memory and kinds.
inline Ticks least_makespan(const GraphCosts& costs) {
  const OperatorGraph& g = costs.graph();
  Assignment where(g.size(), 0);
  Ticks best = std::numeric_limits<Ticks>::max();
  const std::function<void(int)> assign = [&](int group) {
    if (group == g.groups.rows()) {
      if (check_assignment(costs, where).empty()) best = shortest_schedule(costs, where, best);
      return;
    }
    for (int d = 0; d < costs.device_count(); ++d) {
      for (const int v : g.groups[group]) where[v] = d;
      assign(group + 1);
    }
  };
  assign(0);
  return best;
}

}  // namespace ostinato::test
