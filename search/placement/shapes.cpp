// SPDX-License-Identifier: Apache-2.0
#include "search/placement/shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/files/nearest.h"
#include "search/placement/lanes.h"
#include "search/placement/shape_stages.h"

namespace ostinato {
namespace {

using Stages = std::vector<ShapeStage>;

[[noreturn]] void refuse(const std::string& message) { throw InputError("", 0, message); }

void check_size(const NamedShape& shape, const ShapeOptions& options) {
  constexpr int kMostStages = 65536;
  if (options.devices < 1)
    refuse("a placement needs at least 1 device, got " + std::to_string(options.devices));
  if (shape.halves && options.devices % 2 != 0) {
    refuse("shape " + shape.name + " needs an even number of devices, got " +
           std::to_string(options.devices));
  }
  if (shape.chunked && options.chunks < 1) {
    refuse("shape " + shape.name + " needs at least 1 chunk per device, got " +
           std::to_string(options.chunks));
  }
  if (options.devices > kMostStages / (shape.chunked ? options.chunks : 1)) {
    refuse("more than " + std::to_string(kMostStages) + " stages");
  }
}

/// One value or one per device, each between 0 and `most`.
void check_list(const char* what, const PerDevice<std::int64_t>& list, int devices, std::int64_t most) {
  const std::size_t count = list.values().size();
  if (count != 1 && count != static_cast<std::size_t>(devices)) {
    refuse(std::string(what) + " needs one value, or one per device: got " + std::to_string(count) + " for " +
           counted(devices, "device"));
  }
  for (const std::int64_t value : list.values()) {
    if (value < 0 || value > most) {
      refuse(std::string(what) + " must be between 0 and " + std::to_string(most) + ", got " +
             std::to_string(value));
    }
  }
}

void check(const NamedShape& shape, const ShapeOptions& options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 53;  // no sum over one stage overflows
  check_size(shape, options);
  const int devices = options.devices;
  check_list("forward", options.forward, devices, kMost);
  check_list("backward", options.backward, devices, kMost);
  check_list("weight", options.weight, devices, kMost);
  check_list("shard forward", options.shard_forward, devices, kMost);
  check_list("shard backward", options.shard_backward, devices, kMost);
  check_list("memory", options.memory, devices, kMost);
  check_list("shard memory", options.shard_memory.value_or(0), devices, kMost);
  check_list("offload", options.offload, devices, kMost);
  check_list("workspace", options.workspace, devices, kMost);
  check_list("capacity", options.capacity, devices, kUnlimited);
  check_list("static memory", options.static_memory, devices, kUnlimited);
  check_list("bytes", options.bytes, devices, kMost);
}

/// Which of the parts that nothing connects each stage belongs to: the number of that part's first stage.
std::vector<int> copies(const Stages& stages) {
  std::vector<int> copy(stages.size());
  std::iota(copy.begin(), copy.end(), 0);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const int input : stages[s].inputs) {
      const int low = std::min(copy[s], copy[input]), high = std::max(copy[s], copy[input]);
      std::replace(copy.begin(), copy.end(), high, low);
    }
  }
  return copy;
}

/// Layers of the stages of one copy: one of each that is sharded, as equal a share as can be of each other.
void share_layers(const Stages& stages, const std::vector<int>& copy, int part, int layers,
                  Placement& placement) {
  int sharded = 0, whole = 0, done = 0, end = 0;
  for (std::size_t s = 0; s < stages.size(); ++s)
    if (copy[s] == part) ++(stages[s].shard ? sharded : whole);
  if (layers < sharded + whole)
    refuse(fmt::format("{} cannot be divided: each of {} needs at least one", counted(layers, "layer"),
                       counted(sharded + whole, "stage")));
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (copy[s] != part) continue;
    const int first = end;
    const std::int64_t rest = layers - sharded;
    end += stages[s].shard ? 1 : static_cast<int>((done + 1) * rest / whole - done * rest / whole);
    if (!stages[s].shard) ++done;
    placement.stages.push_back(stages[s]);
    placement.stages.back().layers = Layers::run(first, end);
  }
}

void share_layers(const Stages& stages, int layers, Placement& placement) {
  const std::vector<int> copy = copies(stages);
  for (std::size_t s = 0; s < stages.size(); ++s)
    if (copy[s] == static_cast<int>(s)) share_layers(stages, copy, copy[s], layers, placement);
}

/// Unrolls stages into the blocks of one micro-batch: forwards in model order, then backwards in reverse.
class Unroll {
 public:
  Unroll(const Stages& stages, const ShapeOptions& options, bool shard_keeps)
      : stages_(stages),
        options_(options),
        shard_memory_(options.shard_memory.value_or(shard_keeps ? options.memory[0] : 0)),
        consumers_(stages.size()),
        gradient_(stages.size(), -1) {
    const auto& weights = options.weight.values();
    split_ = std::any_of(weights.begin(), weights.end(), [](Nanoseconds time) { return time > 0; });
    for (std::size_t s = 0; s < stages.size(); ++s) {
      for (const int input : stages[s].inputs) consumers_[input].push_back(static_cast<int>(s));
    }
  }

  std::vector<Block> blocks() {
    for (std::size_t s = 0; s < stages_.size(); ++s) add_forward(static_cast<int>(s));
    if (!options_.training) return std::move(blocks_);
    for (int s = static_cast<int>(stages_.size()) - 1; s >= 0; --s) add_backward(s);
    return std::move(blocks_);
  }

 private:
  Block& add(int s, Kind kind, const char* suffix, Nanoseconds time) {
    Block block;
    block.name = stages_[s].name + suffix;
    block.stage = stages_[s].name;
    block.kind = kind;
    block.devices = stages_[s].devices;
    block.time = time;
    // Of several devices the one that needs most: a block has one figure for all of them.
    for (const int d : block.devices) block.workspace = std::max(block.workspace, options_.workspace[d]);
    return blocks_.emplace_back(std::move(block));
  }

  int device(int s) const { return stages_[s].devices.front(); }
  Bytes kept(int s) const { return stages_[s].shard ? shard_memory_ : options_.memory[device(s)]; }

  void add_forward(int s) {
    const ShapeStage& stage = stages_[s];
    Block& block =
        add(s, Kind::forward, ".F", stage.shard ? options_.shard_forward : options_.forward[device(s)]);
    // An inference keeps nothing: what a forward needs is free again when it ends.
    if (options_.training) {
      block.memory = kept(s);
    } else {
      block.workspace += kept(s);
    }
    for (const int input : stage.inputs) block.after.push_back({input, options_.bytes});
  }

  void add_backward(int s) {
    const bool shard = stages_[s].shard;
    const bool split = split_ && !shard;
    const Nanoseconds time = shard ? options_.shard_backward : options_.backward[device(s)];
    Block& block = split ? add(s, Kind::backward_input, ".I", time) : add(s, Kind::backward, ".B", time);
    gradient_[s] = static_cast<int>(blocks_.size()) - 1;
    block.after.push_back({s, 0});
    for (const int consumer : consumers_[s]) block.after.push_back({gradient_[consumer], options_.bytes});
    if (!split) {
      block.memory = -kept(s);
      return;
    }
    Block& weight = add(s, Kind::backward_weight, ".W", options_.weight[device(s)]);
    weight.memory = -kept(s);
    weight.after.push_back({gradient_[s], 0});
  }

  const Stages& stages_;
  const ShapeOptions& options_;
  Bytes shard_memory_;
  bool split_ = false;
  std::vector<Block> blocks_;
  std::vector<std::vector<int>> consumers_;  ///< by stage
  std::vector<int> gradient_;  ///< block that hands the gradient of a stage's input on, by stage
};

/// What a stage keeps goes to the host after its forward, and comes back before its backward.
class Offload {
 public:
  Offload(Placement& placement, const ShapeOptions& options) : placement_(placement), options_(options) {}

  void run() {
    for (int d = 0; d < options_.devices; ++d)
      if (options_.offload[d] > 0) add_lane(placement_, d, "copy");
    link_lanes(placement_);
    const int blocks = static_cast<int>(placement_.blocks.size());
    for (int b = 0; b < blocks; ++b) {
      const Block& block = placement_.blocks[b];
      if (block.kind == Kind::forward && block.devices.size() == 1 && options_.offload[block.devices[0]] > 0)
        add(b);
    }
  }

 private:
  void add(int forward) {
    const Bytes kept = placement_.blocks[forward].memory;
    const int copied = copy(forward, Kind::offload, ".O");
    const int freed = account(copied, Kind::offload, ".freed", -kept);
    const int taken = account(freed, Kind::load, ".taken", kept);
    const int there = copy(taken, Kind::load, ".L");
    for (Block& block : placement_.blocks) {
      const bool backward = block.kind == Kind::backward || block.kind == Kind::backward_input;
      if (backward && block.stage == placement_.blocks[forward].stage) block.after.push_back({there, 0});
    }
  }

  int copy(int behind, Kind kind, const char* suffix) {
    const int device = placement_.blocks[behind].devices[0];
    return add(behind, kind, suffix, find_lane(placement_, device, "copy"), options_.offload[device], 0);
  }

  int account(int behind, Kind kind, const char* suffix, Bytes memory) {
    constexpr Nanoseconds kNoTime = 1;  // and not 0: all bounds apply
    return add(behind, kind, suffix, device_of(placement_, placement_.blocks[behind].devices[0]), kNoTime,
               memory);
  }

  int add(int behind, Kind kind, const char* suffix, int device, Nanoseconds time, Bytes memory) {
    const std::string stage = placement_.blocks[behind].stage;
    placement_.blocks.push_back({.name = stage + suffix,
                                 .stage = stage,
                                 .kind = kind,
                                 .devices = {device},
                                 .time = time,
                                 .memory = memory,
                                 .after = {{behind, 0}}});
    return static_cast<int>(placement_.blocks.size()) - 1;
  }

  Placement& placement_;
  const ShapeOptions& options_;
};

}  // namespace

const std::vector<std::string>& shape_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const NamedShape& named : named_shapes()) list.push_back(named.name);
    return list;
  }();
  return names;
}

Placement shape(const std::string& name, const ShapeOptions& options) {
  const NamedShape* named = find_named_shape(name);
  if (named == nullptr) {
    const std::string near = nearest(name, shape_names());
    refuse("unknown shape \"" + name + "\"" + (near.empty() ? "" : ": did you mean \"" + near + "\"?"));
  }
  check(*named, options);
  const Stages stages = named->stages(options.devices, options.chunks);
  Placement placement;
  placement.name = name + "-shape-" + std::to_string(options.devices);
  if (named->chunked)
    placement.name = name + "-" + std::to_string(options.chunks) + "x" + std::to_string(options.devices);
  placement.link = options.link;
  for (int d = 0; d < options.devices; ++d) {
    placement.devices.push_back(
        {"device" + std::to_string(d), "", options.capacity[d], options.static_memory[d]});
  }
  if (options.layers > 0) share_layers(stages, options.layers, placement);
  placement.blocks = Unroll(stages, options, named->shard_keeps).blocks();
  if (options.training) Offload(placement, options).run();
  return placement;
}

}  // namespace ostinato
