// SPDX-License-Identifier: Apache-2.0
#pragma once
// An operator graph and the devices it may run on: the problem of Mayer, Mayer, Laich (arXiv 1711.01912,
// section 2).
//
// A vertex is one operation. It starts when the tensors of all its predecessors have arrived at its device;
// it runs for operations / speed; a device runs one vertex at a time, without preemption. A tensor goes once
// to each device that needs it, in size / rate, without contention, and costs nothing on its own device.
// Vertices that must share a device form a group: a group is what is assigned.
//
//   OperatorGraph graph = build_graph({{.id = 1, .operations = 50}, {.id = 2, .after = {1}}}, "example");
//   GraphCosts costs(graph, devices);
//   Ticks t = costs.execution(v, d) + costs.transfer(v, d, e);
//
// Time is counted in ticks: the unit of the input (operations over operations per unit) has 10^9, and every
// division rounds up, once per vertex and once per transfer. So each duration is exact to a billionth of a
// unit and never too short; no floating point decides a schedule.

#include <cstdint>
#include <string>
#include <vector>

#include "search/numbers/lists.h"

namespace ostinato::graph {

using Ticks = std::int64_t;
inline constexpr Ticks kTicksPerUnit = 1'000'000'000;
/// Operations, tensor sizes, speeds and rates.
inline constexpr std::int64_t kMaxGraphNumber = 1'000'000'000;

/// One row of a graph file, by the ids of the file.
struct GraphVertex {
  std::int64_t id = 0;
  std::vector<std::int64_t> before = {};  ///< ids of successors
  std::vector<std::int64_t> after = {};   ///< ids of predecessors; an edge may be named at one end or at both
  std::vector<std::int64_t> together = {};  ///< ids that must be on the same device; either end may name it
  std::int64_t tensor = 0;                  ///< size of what each successor receives
  std::int64_t operations = 0;
  std::int64_t memory = 0;  ///< of its parameters and code: without tensors
  std::string kind = {};    ///< device kind that it needs ("GPU"); empty: any
  std::string name = {};
  int line = 0;  ///< in the file, for messages; 0: none
};

/// Vertices are indices by ascending id, whatever the order of the file; flat arrays throughout.
struct OperatorGraph {
  std::string source;  ///< file, for messages
  std::vector<std::int64_t> ids;
  std::vector<std::string> names;
  std::vector<std::int64_t> operations;
  std::vector<std::int64_t> tensors;
  std::vector<std::int64_t> memory;  ///< own memory + own tensor + the tensors that it reads
  std::vector<int> lines;
  Lists<int> successors, predecessors;  ///< each row ascending, without duplicates
  std::vector<int> order;               ///< topological; ties by index
  std::vector<int> group;               ///< of each vertex
  Lists<int> groups;                    ///< vertices of each group; groups by their smallest vertex
  std::vector<int> group_kind;          ///< index into kinds, -1: any device
  std::vector<std::pair<std::int64_t, int>>
      group_place;  ///< in the table of groups of the published program: (place, turn), see table_size()
  std::vector<std::int64_t> group_operations, group_memory;
  std::vector<std::string> kinds;  ///< that some vertex asks for

  int size() const { return static_cast<int>(ids.size()); }
};

/// Places of a hash table with this many keys in the published program's language, where a number stands at
/// number mod places, behind those put there before, and tables are walked by place: some of its results
/// depend on that order.
std::int64_t table_size(std::size_t keys);

/// Builds a graph from its rows. Throws InputError(source:line) for an id that is given twice or not at all,
/// a number out of range, a cycle (named in full), and a group that asks for two kinds. O((V + E) log V).
OperatorGraph build_graph(std::vector<GraphVertex> rows, const std::string& source);

struct GraphDevice {
  std::int64_t id = 0;
  std::int64_t memory = 0;
  std::int64_t speed = 1;  ///< operations per time unit, >= 1
  std::string kind;
};

struct GraphDevices {
  std::string source;
  std::vector<GraphDevice> devices;
  std::vector<std::int64_t>
      rates;  ///< [from * size + to], tensor size per time unit, >= 1; own entries unused

  int size() const { return static_cast<int>(devices.size()); }
};

/// What runs where: the device of every vertex.
using Assignment = std::vector<int>;

/// Durations of a graph on devices, and which device may hold which group. Refers to both: they must outlive
/// it.
class GraphCosts {
 public:
  /// Throws InfeasibleError where a group has no device of its kind with enough memory, and InputError where
  /// the sum of all durations would leave int64.
  GraphCosts(const OperatorGraph& graph, const GraphDevices& devices);

  const OperatorGraph& graph() const { return graph_; }
  const GraphDevices& devices() const { return devices_; }
  int device_count() const { return devices_.size(); }

  Ticks execution(int vertex, int device) const { return duration(graph_.operations[vertex], device); }
  Ticks duration(std::int64_t operations, int device) const {
    const std::int64_t speed = devices_.devices[device].speed;
    return (operations * kTicksPerUnit + speed - 1) / speed;
  }
  Ticks transfer(int vertex, int from, int to) const {
    if (from == to) return 0;
    const std::int64_t rate = devices_.rates[static_cast<std::size_t>(from) * device_count() + to];
    return (graph_.tensors[vertex] * kTicksPerUnit + rate - 1) / rate;
  }
  /// By kind and by memory of an empty device.
  bool allowed(int group, int device) const {
    const int kind = graph_.group_kind[group];
    return (kind < 0 || kind_fits_[static_cast<std::size_t>(kind) * device_count() + device]) &&
           graph_.group_memory[group] <= devices_.devices[device].memory;
  }
  /// The fastest device that may hold the group; the first of several.
  int fastest(int group) const;
  /// Devices by speed, fastest first, ties by index.
  const std::vector<int>& by_speed() const { return by_speed_; }

 private:
  void check_sums() const;
  bool has_kind(const std::string& kind) const;
  [[noreturn]] void refuse_kind(int vertex, const std::string& kind) const;

  const OperatorGraph& graph_;
  const GraphDevices& devices_;
  std::vector<char> kind_fits_;
  std::vector<int> by_speed_;
};

/// "" where the assignment keeps every kind, group and memory, else what it breaks. O(V + devices).
std::string check_assignment(const GraphCosts& costs, const Assignment& assignment);

}  // namespace ostinato::graph
