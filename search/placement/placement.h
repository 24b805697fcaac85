// SPDX-License-Identifier: Apache-2.0
#pragma once
// A placement: what one micro-batch runs, and on which devices (docs/formats.md: ostinato-placement/1).
//
// Every (block, micro-batch) runs exactly once, without preemption, and holds all devices of its block for
// its whole time. A device runs one block at a time, and so does each of its lanes beside it. Time is int64
// nanoseconds, memory int64 bytes; no floating point decides a schedule. Source: Tessel (arXiv 2311.15269),
// section 3, extended by links, workspace and static memory.
//
//   Placement p = read_placement("v-shape-4.toml").placement; // placement_toml.h
//   Nanoseconds t = p.transfer(p.blocks[b].after[0], b);      // earliest start of b after that input ends

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "search/placement/stage.h"

namespace ostinato {

using Nanoseconds = std::int64_t;
using Bytes = std::int64_t;

/// Capacity of a device with unlimited memory.
inline constexpr Bytes kUnlimited = std::numeric_limits<Bytes>::max();

/// offload, load: on a lane a copy of what a stage keeps to the host, and back; on the device the end of the
/// one, which gives the memory back, and the begin of the other, which takes it.
enum class Kind { forward, backward, backward_input, backward_weight, offload, load, other };
inline constexpr std::size_t kKinds = static_cast<std::size_t>(Kind::other) + 1;

const char* to_string(Kind kind);

/// A directed link between two devices.
struct Link {
  Nanoseconds latency = 0;
  std::int64_t bytes_per_second = 0;  ///< 0: the bytes cost nothing

  /// latency + ceil(bytes / bandwidth), saturating at the largest int64.
  Nanoseconds time(Bytes bytes) const;

  friend bool operator==(const Link&, const Link&) = default;
};

struct Device {
  std::string name;
  std::string kind;           ///< which profile rows apply; may be empty
  Bytes memory = kUnlimited;  ///< capacity
  Bytes static_memory = 0;    ///< always in use: parameters, gradients, optimizer state
  int lane_of = -1;           ///< the device that this is a lane of (lanes.h); -1: a device itself
  std::string lane = {};      ///< its name among the lanes of that device

  friend bool operator==(const Device&, const Device&) = default;
};

/// Optional `[[hosts]]` of a placement: devices that share processors, as ranks on a CPU with fewer cores, or
/// several on one accelerator. While more of them than `cores` compute, each computes so much slower. The
/// search takes every device to have its own; simulate() and choose_plan() count what sharing costs.
struct Host {
  std::vector<int> devices;  ///< sorted, without duplicates; no device is on two hosts
  int cores = 1;             ///< >= 1
  int ranks = 1;  ///< >= 1; that each of its devices stands for: of replicas and slices, which run as it does

  friend bool operator==(const Host&, const Host&) = default;
};

/// One input of a block: the block of the same micro-batch that it waits for, and what is carried over.
struct Dependency {
  int block = -1;  ///< index into Placement::blocks
  Bytes bytes = 0;

  friend bool operator==(const Dependency&, const Dependency&) = default;
};

struct Block {
  std::string name;   ///< unique
  std::string stage;  ///< the model chunk that it runs
  Kind kind = Kind::other;
  std::vector<int>
      devices;           ///< sorted, without duplicates, at least one; holds all of them for its whole time
  Nanoseconds time = 0;  ///< >= 0
  Bytes memory = 0;  ///< on each of its devices: > 0 is taken when it starts, < 0 is given back when it ends
  Bytes workspace = 0;  ///< >= 0; in use only while it runs
  std::vector<Dependency> after;

  friend bool operator==(const Block&, const Block&) = default;
};

struct Placement {
  std::string name;
  Link link;                                  ///< default between any two devices
  std::map<std::pair<int, int>, Link> links;  ///< overrides for directed pairs (from, to)
  std::vector<Device> devices;                ///< lanes behind all devices
  std::vector<Host> hosts;                    ///< a device in no host has its own processor
  std::vector<Block> blocks;
  /// Optional `[[stages]]`, which the plugin needs and the search not: empty, or every stage of `blocks` in
  /// model order, each on all devices of its blocks.
  std::vector<Stage> stages;

  const Link& link_between(int from, int to) const;

  /// Nanoseconds from the end of `input.block` to the earliest start of `block`. 0 where the devices of
  /// `block` are a subset of the input's; else each device of `block` that does not hold the input is served
  /// by the device of the input that is quickest for it, and the slowest of these counts. Links are not
  /// contended.
  Nanoseconds transfer(const Dependency& input, int block) const;

  /// Index of the block of that name, or -1. O(blocks).
  int find_block(const std::string& name) const;

  friend bool operator==(const Placement&, const Placement&) = default;
};

/// Blocks in an order in which every block comes after its inputs (ties by index). Empty if there is a cycle.
std::vector<int> topological_order(const Placement& placement);

}  // namespace ostinato
