// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "search/files/json.h"
#include "search/show/show.h"

namespace ostinato {
namespace {

/// Trace times are microseconds; a double holds nanoseconds exactly for the first 50 days.
double microseconds(Nanoseconds time) { return static_cast<double>(time) / 1000; }

void add_slices(const Plan& plan, const Placement& placement, Json& events) {
  for (const ScheduledBlock& s : plan.schedule) {
    const Block& block = placement.blocks[s.block];
    for (const int d : block.devices) {
      events.push_back({{"ph", "X"},
                        {"pid", d},
                        {"tid", 0},
                        {"name", fmt::format("{} {}", block.name, s.micro_batch)},
                        {"cat", to_string(block.kind)},
                        {"ts", microseconds(s.start)},
                        {"dur", microseconds(block.time)},
                        {"args", {{"stage", block.stage}, {"micro_batch", s.micro_batch}}}});
    }
  }
}

/// What a device holds after each change, workspace left out. What ends at an instant gives back before what
/// starts then takes.
void add_memory(const Plan& plan, const Placement& placement, Json& events) {
  struct Change {
    Nanoseconds time;
    Bytes bytes;
  };
  std::vector<std::vector<Change>> changes(placement.devices.size());
  for (const ScheduledBlock& s : plan.schedule) {
    const Block& block = placement.blocks[s.block];
    const Nanoseconds time = block.memory < 0 ? s.start + block.time : s.start;
    if (block.memory == 0) continue;
    for (const int d : block.devices) changes[d].push_back({time, block.memory});
  }
  for (std::size_t d = 0; d < changes.size(); ++d) {
    std::stable_sort(changes[d].begin(), changes[d].end(), [](const Change& a, const Change& b) {
      return a.time != b.time ? a.time < b.time : a.bytes < b.bytes;
    });
    Bytes held = placement.devices[d].static_memory;
    for (const Change& change : changes[d]) {
      held += change.bytes;
      events.push_back({{"ph", "C"},
                        {"pid", d},
                        {"name", "memory"},
                        {"ts", microseconds(change.time)},
                        {"args", {{"bytes", held}}}});
    }
  }
}

}  // namespace

std::string show_perfetto(const Plan& plan, const Placement& placement) {
  Json events = Json::array();
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    events.push_back(
        {{"ph", "M"}, {"pid", d}, {"name", "process_name"}, {"args", {{"name", placement.devices[d].name}}}});
    events.push_back(
        {{"ph", "M"}, {"pid", d}, {"name", "process_sort_index"}, {"args", {{"sort_index", d}}}});
    events.push_back(
        {{"ph", "M"}, {"pid", d}, {"tid", 0}, {"name", "thread_name"}, {"args", {{"name", "planned"}}}});
  }
  add_slices(plan, placement, events);
  add_memory(plan, placement, events);
  Json trace = {{"displayTimeUnit", "ms"}};
  trace["traceEvents"] = std::move(events);
  return trace.text() + "\n";
}

}  // namespace ostinato
