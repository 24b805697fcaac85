// SPDX-License-Identifier: Apache-2.0
#include "search/plan/sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "search/files/error.h"
#include "search/placement/lanes.h"

namespace ostinato {
namespace {

__extension__ using Wide = __int128;

/// Sums of times and transfers, and of memory (docs/formats.md: so that no sum overflows).
constexpr Wide kMostTime = static_cast<Wide>(1) << 60;
constexpr Wide kMostMemory = static_cast<Wide>(1) << 62;

std::size_t inputs_of(const Placement& placement) {
  std::size_t count = 0;
  for (const Block& block : placement.blocks) count += block.after.size();
  return count;
}

std::int64_t times(std::int64_t value, std::int64_t size, std::int64_t of) {
  const Wide amount = value < 0 ? -static_cast<Wide>(value) : static_cast<Wide>(value);
  const Wide limit = std::numeric_limits<std::int64_t>::max();
  const Wide result = std::min(limit, (2 * amount * size + of) / (2 * static_cast<Wide>(of)));
  return static_cast<std::int64_t>(value < 0 ? -result : result);
}

void check_one(const MicroBatch& one, std::size_t i, std::size_t blocks, std::size_t inputs) {
  const auto refuse = [&](const char* what, std::size_t wanted, std::size_t has) {
    throw InputError("", 0,
                     fmt::format("micro-batch {}: {} {}, but the placement has {}", i, has, what, wanted));
  };
  if (one.times.size() != blocks) refuse("times", blocks, one.times.size());
  if (one.memory.size() != blocks) refuse("figures of memory", blocks, one.memory.size());
  if (one.workspace.size() != blocks) refuse("figures of workspace", blocks, one.workspace.size());
  if (one.bytes.size() != inputs) refuse("figures of bytes", inputs, one.bytes.size());
  for (const auto* list : {&one.times, &one.workspace, &one.bytes})
    if (std::any_of(list->begin(), list->end(), [](std::int64_t value) { return value < 0; }))
      throw InputError("", 0,
                       fmt::format("micro-batch {}: times, workspace and bytes must be at least 0", i));
}

/// Of a block with memory or workspace.
void check_lanes(const Placement& placement, std::size_t b, std::size_t i) {
  const std::string reason = no_memory_for(placement, placement.blocks[b]);
  if (!reason.empty()) throw InputError("", 0, fmt::format("micro-batch {}: {}", i, reason));
}

}  // namespace

MicroBatch as_written(const Placement& placement) {
  MicroBatch one;
  for (const Block& block : placement.blocks) {
    one.times.push_back(block.time);
    one.memory.push_back(block.memory);
    one.workspace.push_back(block.workspace);
    for (const Dependency& input : block.after) one.bytes.push_back(input.bytes);
  }
  return one;
}

MicroBatch scaled(const Placement& placement, std::int64_t size, std::int64_t of) {
  MicroBatch one = as_written(placement);
  for (auto* list : {&one.times, &one.memory, &one.workspace, &one.bytes})
    for (std::int64_t& value : *list) value = times(value, size, of);
  return one;
}

void check_sizes(const Placement& placement, const std::vector<MicroBatch>& sizes) {
  if (sizes.empty()) throw InputError("", 0, "no micro-batch; a step needs at least one");
  Wide time = 0, memory = 0, fixed = 0;
  for (const Device& device : placement.devices) fixed = std::max<Wide>(fixed, device.static_memory);
  const std::size_t inputs = inputs_of(placement);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    check_one(sizes[i], i, placement.blocks.size(), inputs);
    std::size_t edge = 0;
    for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
      time += sizes[i].times[b];
      const Bytes taken = sizes[i].memory[b];
      memory += taken < 0 ? -static_cast<Wide>(taken) : static_cast<Wide>(taken);
      memory += sizes[i].workspace[b];
      if (taken != 0 || sizes[i].workspace[b] != 0) check_lanes(placement, b, i);
      for (Dependency input : placement.blocks[b].after) {
        input.bytes = sizes[i].bytes[edge++];
        time += placement.transfer(input, static_cast<int>(b));
      }
    }
    if (time >= kMostTime || memory + fixed >= kMostMemory)
      throw InputError("", 0,
                       fmt::format("micro-batches 0 to {} together: all times and transfers must stay "
                                   "below 2^60 ns, all memory below 2^62 bytes",
                                   i));
  }
}

Placement unrolled(const Placement& placement, const std::vector<MicroBatch>& sizes) {
  Placement all = placement;
  all.blocks.clear();
  all.stages.clear();
  const int blocks = static_cast<int>(placement.blocks.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::size_t edge = 0;
    for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
      Block& block = all.blocks.emplace_back(placement.blocks[b]);
      block.name += fmt::format("#{}", i);
      block.time = sizes[i].times[b];
      block.memory = sizes[i].memory[b];
      block.workspace = sizes[i].workspace[b];
      for (Dependency& input : block.after) {
        input.block += static_cast<int>(i) * blocks;
        input.bytes = sizes[i].bytes[edge++];
      }
    }
  }
  return all;
}

}  // namespace ostinato
