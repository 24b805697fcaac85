#pragma once
// A slow and plain reading of FORMATS: what is wrong with a schedule, in words; empty if nothing is.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "search/placement.h"
#include "search/plan.h"

namespace ostinato::test {

inline Bytes memory_at(const Placement& p, const std::vector<ScheduledBlock>& schedule, int device,
                       Nanoseconds at) {
  Bytes used = p.devices[device].static_memory;
  for (const ScheduledBlock& s : schedule) {
    const Block& b = p.blocks[s.block];
    for (const int d : b.devices) {
      if (d != device) continue;
      if (b.memory > 0 && s.start <= at) used += b.memory;
      if (b.memory < 0 && s.start + b.time <= at) used += b.memory;
      if (s.start <= at && at < s.start + b.time) used += b.workspace;
    }
  }
  return used;
}

inline std::string what_is_wrong(const Placement& p, int micro_batches,
                                 const std::vector<ScheduledBlock>& schedule) {
  std::vector<std::vector<Nanoseconds>> start(p.blocks.size(), std::vector<Nanoseconds>(micro_batches, -1));
  for (const ScheduledBlock& s : schedule) {
    if (start[s.block][s.micro_batch] >= 0) return fmt::format("{} runs twice", p.blocks[s.block].name);
    if (s.start < 0) return "a start before 0";
    start[s.block][s.micro_batch] = s.start;
  }
  if (schedule.size() != p.blocks.size() * static_cast<std::size_t>(micro_batches))
    return "a step is missing";
  for (const ScheduledBlock& s : schedule) {
    for (const Dependency& input : p.blocks[s.block].after) {
      const Nanoseconds end = start[input.block][s.micro_batch] + p.blocks[input.block].time;
      if (end + p.transfer(input, s.block) > s.start)
        return fmt::format("{} is too early", p.blocks[s.block].name);
    }
  }
  for (int d = 0; d < static_cast<int>(p.devices.size()); ++d) {
    Nanoseconds free = 0;
    for (const ScheduledBlock& s : schedule) {  // by start
      const auto& devices = p.blocks[s.block].devices;
      if (std::find(devices.begin(), devices.end(), d) == devices.end()) continue;
      if (s.start < free) return fmt::format("device {} runs two blocks at {}", d, s.start);
      free = s.start + p.blocks[s.block].time;
      if (p.devices[d].memory == kUnlimited) continue;
      if (memory_at(p, schedule, d, s.start) > p.devices[d].memory)
        return fmt::format("device {} is over its memory", d);
    }
  }
  return "";
}

}  // namespace ostinato::test
