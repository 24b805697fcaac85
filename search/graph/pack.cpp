// SPDX-License-Identifier: Apache-2.0
#include "search/graph/pack.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "search/graph/loads.h"
#include "search/numbers/random.h"

namespace ostinato::graph {
namespace {

std::vector<int> hardest_first(const GraphCosts& costs, std::uint64_t seed) {
  const OperatorGraph& graph = costs.graph();
  Random random(seed);
  std::vector<double> hardness;
  for (int g = 0; g < graph.groups.rows(); ++g) {
    int homes = 0;
    for (int d = 0; d < costs.device_count(); ++d) homes += costs.allowed(g, d) ? 1 : 0;
    const double share = seed == 0 ? 1 : 1 + random.below(1024) / 1024.0;
    hardness.push_back(share * static_cast<double>(graph.group_memory[g]) / homes);
  }
  std::vector<int> order(hardness.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return hardness[a] > hardness[b]; });
  return order;
}

}  // namespace

GraphPartition pack_groups(const GraphCosts& costs, std::uint64_t seed, bool quick) {
  GraphLoads loads(costs);
  for (const int g : hardest_first(costs, seed)) {
    int best = -1;
    std::int64_t least = 0;
    for (int d = 0; d < costs.device_count(); ++d) {
      if (!loads.fits(g, d)) continue;
      const std::int64_t measure = quick ? loads.load(d, costs.graph().group_operations[g])
                                         : costs.devices().devices[d].memory - loads.used_memory(d);
      if (best < 0 || measure < least) best = d, least = measure;
    }
    if (!loads.assign(g, best)) break;
  }
  return {loads.take(), {}, loads.reason()};
}

}  // namespace ostinato::graph
