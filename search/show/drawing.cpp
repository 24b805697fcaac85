// SPDX-License-Identifier: Apache-2.0
#include "search/show/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "search/files/counted.h"
#include "search/files/printable.h"
#include "search/files/units.h"
#include "search/placement/lanes.h"
#include "search/placement/quantity.h"

namespace ostinato {
namespace {

bool begins_letter(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

}  // namespace

std::string headline(const Plan& plan, const Placement& placement) {
  std::string text = fmt::format(
      "{}: {} on {}, makespan {}", printable(placement.name), counted(plan.micro_batches, "micro-batch"),
      counted(count_without_lanes(placement), "device"), format_time(plan.makespan));
  if (plan.optimal.makespan) {
    text += " (optimal according to the plan)";
  } else if (plan.lower_bound.makespan > 0) {
    text += fmt::format(" (bound {} according to the plan)", format_time(plan.lower_bound.makespan));
  }
  if (plan.steady_state.count > 0) {
    text += fmt::format(", period {} for {}", format_time(plan.steady_state.period),
                        counted(plan.steady_state.unroll, "micro-batch"));
  }
  return text;
}

std::size_t letters_of(std::string_view name) {
  return static_cast<std::size_t>(std::ranges::count_if(name, begins_letter));
}

std::string shortened(std::string_view name, std::size_t letters) {
  std::string text = printable(name);
  if (letters_of(text) <= letters) return text;
  std::size_t end = 0, seen = 0;
  while (!begins_letter(text[end]) || seen++ < letters - 1) ++end;
  return text.substr(0, end) + "…";
}

std::vector<Nanoseconds> busy_times(const Plan& plan, const Placement& placement) {
  std::vector<Nanoseconds> busy(placement.devices.size(), 0);
  for (const ScheduledBlock& s : plan.schedule) {
    for (const int d : placement.blocks[s.block].devices) busy[d] += placement.blocks[s.block].time;
  }
  return busy;
}

Nanoseconds tick_length(Nanoseconds makespan) {
  Nanoseconds tick = 1;
  for (Nanoseconds power = 1; power <= makespan / 5; power *= 10) {
    for (const Nanoseconds factor : {1, 2, 5}) {
      if (power * factor <= makespan / 5) tick = power * factor;
    }
    if (power > makespan / 50) break;
  }
  return tick;
}

std::string tick_label(Nanoseconds time, Nanoseconds tick) {
  std::string label = format_time(time);
  if (format_time(time + tick) != label) return label;
  for (const Unit& unit : kTimeUnits)
    if (tick % unit.factor == 0) label = fmt::format("{} {}", time / unit.factor, unit.name);
  return label;
}

std::vector<int> chunks_of_blocks(const Placement& placement) {
  std::vector<std::unordered_map<std::string_view, int>> stages(placement.devices.size());
  std::vector<int> chunks;
  for (const Block& block : placement.blocks) {
    for (const int d : block.devices) stages[d].emplace(block.stage, static_cast<int>(stages[d].size()));
    chunks.push_back(stages[block.devices.front()].at(block.stage));
  }
  return chunks;
}

}  // namespace ostinato
