// SPDX-License-Identifier: Apache-2.0
#include "search/graph/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "search/files/error.h"
#include "search/files/value.h"

namespace ostinato::graph {

GraphCosts::GraphCosts(const OperatorGraph& graph, const GraphDevices& devices)
    : graph_(graph), devices_(devices), by_speed_(devices.size()) {
  for (const std::string& kind : graph.kinds)
    for (const GraphDevice& device : devices.devices) kind_fits_.push_back(device.kind == kind);
  std::iota(by_speed_.begin(), by_speed_.end(), 0);
  std::stable_sort(by_speed_.begin(), by_speed_.end(),
                   [&](int a, int b) { return devices.devices[a].speed > devices.devices[b].speed; });
  for (int g = 0; g < graph.groups.rows(); ++g) {
    if (fastest(g) >= 0) continue;
    const int v = graph.groups[g].front(), kind = graph.group_kind[g];
    const std::size_t others = graph.groups[g].size() - 1;
    if (kind >= 0 && !has_kind(graph.kinds[kind])) refuse_kind(v, graph.kinds[kind]);
    throw InfeasibleError(fmt::format(
        "{}: vertex {}{} needs {} of memory on one {}, but no device of {} has that much",
        graph.lines[v] > 0 ? fmt::format("{}:{}", graph.source, graph.lines[v]) : graph.source, graph.ids[v],
        others == 0   ? ""
        : others == 1 ? " with the vertex that must share its device"
                      : fmt::format(" with the {} vertices that must share its device", others),
        graph.group_memory[g], kind < 0 ? "device" : graph.kinds[kind], devices.source));
  }
  check_sums();
}

bool GraphCosts::has_kind(const std::string& kind) const {
  return std::any_of(devices_.devices.begin(), devices_.devices.end(),
                     [&](const GraphDevice& device) { return device.kind == kind; });
}

void GraphCosts::refuse_kind(int vertex, const std::string& kind) const {
  std::vector<std::string> kinds;
  for (const GraphDevice& device : devices_.devices) kinds.push_back(device.kind);
  std::sort(kinds.begin(), kinds.end());
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  throw InfeasibleError(fmt::format(
      "{}: vertex {} needs a device of the kind {}, but {} has only {}{}",
      graph_.lines[vertex] > 0 ? fmt::format("{}:{}", graph_.source, graph_.lines[vertex]) : graph_.source,
      graph_.ids[vertex], in_quotes(kind), devices_.source, fmt::join(kinds, ", "),
      did_you_mean(kind, kinds)));
}

int GraphCosts::fastest(int group) const {
  for (const int d : by_speed_)
    if (allowed(group, d)) return d;
  return -1;
}

// Everything one after the other on the slowest device over the slowest link must fit a quarter of int64, so
// that no sum of a schedule, a rank or a bound can overflow.
void GraphCosts::check_sums() const {
  const std::int64_t slowest = devices_.devices[by_speed_.back()].speed;
  std::int64_t lowest_rate = kMaxGraphNumber;
  for (int from = 0; from < device_count(); ++from)
    for (int to = 0; to < device_count(); ++to)
      if (from != to)
        lowest_rate =
            std::min(lowest_rate, devices_.rates[static_cast<std::size_t>(from) * device_count() + to]);
  Ticks left = std::numeric_limits<Ticks>::max() / 4;
  for (int v = 0; v < graph_.size(); ++v) {
    left -=
        graph_.operations[v] * kTicksPerUnit / slowest + graph_.tensors[v] * kTicksPerUnit / lowest_rate + 2;
    if (left < 0)
      throw InputError(
          graph_.source, graph_.lines[v],
          "the durations of all vertices and transfers together exceed 2,300,000,000 time units on the "
          "slowest device and link; scale operations and tensor sizes down");
  }
}

std::string check_assignment(const GraphCosts& costs, const Assignment& assignment) {
  const OperatorGraph& graph = costs.graph();
  if (static_cast<int>(assignment.size()) != graph.size()) return "not every vertex has a device";
  std::vector<std::int64_t> used(costs.device_count(), 0);
  for (int v = 0; v < graph.size(); ++v) {
    const int d = assignment[v];
    if (d < 0 || d >= costs.device_count()) return fmt::format("vertex {} has no device", graph.ids[v]);
    if (!costs.allowed(graph.group[v], d))
      return fmt::format("vertex {} is on device {}, which is of another kind or too small", graph.ids[v],
                         costs.devices().devices[d].id);
    const int first = graph.groups[graph.group[v]].front();
    if (assignment[first] != d)
      return fmt::format("vertices {} and {} must share a device", graph.ids[first], graph.ids[v]);
    used[d] += graph.memory[v];
  }
  for (int d = 0; d < costs.device_count(); ++d)
    if (used[d] > costs.devices().devices[d].memory)
      return fmt::format("device {} holds {} of memory and has {}", costs.devices().devices[d].id, used[d],
                         costs.devices().devices[d].memory);
  return "";
}

}  // namespace ostinato::graph
