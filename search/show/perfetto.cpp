// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "search/files/json.h"
#include "search/placement/lanes.h"
#include "search/show/routes.h"
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
                        {"name", block.name},
                        {"cat", to_string(block.kind)},
                        {"ts", microseconds(s.start)},
                        {"dur", microseconds(block.time)},
                        {"args", {{"stage", block.stage}, {"micro_batch", s.micro_batch}}}});
    }
  }
}

/// Transfers between devices: slices that may overlap, and arrows from the block that sends to the one that
/// receives.
class Transfers {
 public:
  Transfers(const Plan& plan, const Placement& placement, Json& events)
      : plan_(plan), placement_(placement), events_(events) {
    for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
      auto& inputs = routes_.emplace_back();
      for (const Dependency& input : placement.blocks[b].after)
        inputs.push_back(routes_of(placement, input, static_cast<int>(b)));
    }
    starts_.resize(placement.blocks.size() * plan.micro_batches);
    for (const ScheduledBlock& s : plan.schedule) starts_[index(s.block, s.micro_batch)] = s.start;
  }

  void add() {
    for (const ScheduledBlock& s : plan_.schedule) {
      const auto& after = placement_.blocks[s.block].after;
      for (std::size_t i = 0; i < after.size(); ++i)
        for (const Route& route : routes_[s.block][i]) add(s, after[i], route);
    }
  }

 private:
  std::size_t index(int block, int micro_batch) const {
    return static_cast<std::size_t>(micro_batch) * placement_.blocks.size() + block;
  }

  void add(const ScheduledBlock& to, const Dependency& input, const Route& route) {
    const Block& sender = placement_.blocks[input.block];
    const Block& receiver = placement_.blocks[to.block];
    const Nanoseconds start = starts_[index(input.block, to.micro_batch)], sent = start + sender.time;
    const std::string name = fmt::format("{} to {}", sender.name, receiver.name);
    const std::string way =
        fmt::format("{} to {}", placement_.devices[route.from].name, placement_.devices[route.to].name);
    ++count_;
    Json begin = {{"ph", "b"},    {"pid", route.to},   {"tid", 0},
                  {"id", count_}, {"cat", "transfer"}, {"name", name}};
    Json end = begin;
    begin["ts"] = microseconds(sent);
    begin["args"] = {{"micro_batch", to.micro_batch}, {"bytes", input.bytes}, {"way", way}};
    end["ph"] = "e";
    end["ts"] = microseconds(sent + route.time);
    events_.push_back(std::move(begin));
    events_.push_back(std::move(end));
    // Arrows are bound to the slices around these instants: to the middle, where no other slice is.
    add_arrow("s", route.from, start, sender.time, name);
    add_arrow("f", route.to, to.start, receiver.time, name);
  }

  void add_arrow(const char* phase, int device, Nanoseconds start, Nanoseconds time,
                 const std::string& name) {
    Json event = {{"ph", phase},  {"pid", device},     {"tid", 0},
                  {"id", count_}, {"cat", "transfer"}, {"name", name}};
    event["ts"] = microseconds(start) + microseconds(time) / 2;
    if (*phase == 'f') event["bp"] = "e";  // the slice around it, not the next one
    events_.push_back(std::move(event));
  }

  const Plan& plan_;
  const Placement& placement_;
  Json& events_;
  std::vector<std::vector<std::vector<Route>>> routes_;  ///< by block and input
  std::vector<Nanoseconds> starts_;                      ///< by micro-batch and block
  std::int64_t count_ = 0;
};

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
  const std::vector<int> rows = rows_of(placement);
  for (std::size_t d = 0; d < placement.devices.size(); ++d) {
    events.push_back(
        {{"ph", "M"}, {"pid", d}, {"name", "process_name"}, {"args", {{"name", placement.devices[d].name}}}});
    events.push_back(
        {{"ph", "M"}, {"pid", d}, {"name", "process_sort_index"}, {"args", {{"sort_index", rows[d]}}}});
    events.push_back(
        {{"ph", "M"}, {"pid", d}, {"tid", 0}, {"name", "thread_name"}, {"args", {{"name", "planned"}}}});
  }
  add_slices(plan, placement, events);
  Transfers(plan, placement, events).add();
  add_memory(plan, placement, events);
  Json trace = {{"displayTimeUnit", "ms"}};
  trace["traceEvents"] = std::move(events);
  return trace.text() + "\n";
}

}  // namespace ostinato
