#include "search/shapes.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "search/error.h"
#include "search/file.h"

namespace ostinato {
namespace {

/// A stage of the model before it is unrolled into forward and backward blocks.
struct ShapeStage {
  std::string name;
  std::vector<int> devices;
  std::vector<int> inputs;  ///< indices of earlier stages
  bool shard = false;       ///< a part of it lies on each of its devices
};

using Stages = std::vector<ShapeStage>;

std::vector<int> all_devices(int devices) {
  std::vector<int> all(devices);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Appends a chain of stages name0, name1, ... on the given devices, fed by stage `input` (-1: by nothing).
/// Returns the index of its last stage.
int add_chain(Stages& stages, const std::string& name, const std::vector<int>& devices, int input) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    std::vector<int> inputs;
    if (input >= 0) inputs.push_back(input);
    input = static_cast<int>(stages.size());
    stages.push_back({name + std::to_string(i), {devices[i]}, inputs});
  }
  return input;
}

int add_shard(Stages& stages, const std::string& name, int devices, std::vector<int> inputs) {
  stages.push_back({name, all_devices(devices), std::move(inputs), true});
  return static_cast<int>(stages.size()) - 1;
}

Stages v_stages(const ShapeOptions& options) {
  Stages stages;
  add_chain(stages, "s", all_devices(options.devices), -1);
  return stages;
}

Stages x_stages(const ShapeOptions& options) {
  Stages stages;
  std::vector<int> devices = all_devices(options.devices);
  add_chain(stages, "a", devices, -1);
  std::reverse(devices.begin(), devices.end());
  add_chain(stages, "b", devices, -1);
  return stages;
}

Stages m_stages(const ShapeOptions& options) {
  Stages stages;
  const int embed = add_shard(stages, "embed", options.devices, {});
  add_chain(stages, "s", all_devices(options.devices), embed);
  return stages;
}

Stages nn_stages(const ShapeOptions& options) {
  Stages stages;
  const std::vector<int> devices = all_devices(options.devices);
  const auto middle = devices.begin() + options.devices / 2;
  const int embed = add_shard(stages, "encoder_embed", options.devices, {});
  const int encoder = add_chain(stages, "encoder", {devices.begin(), middle}, embed);
  const int second = add_shard(stages, "decoder_embed", options.devices, {encoder});
  add_chain(stages, "decoder", {middle, devices.end()}, second);
  return stages;
}

Stages k_stages(const ShapeOptions& options) {
  Stages stages;
  const std::vector<int> devices = all_devices(options.devices);
  const auto middle = devices.begin() + options.devices / 2;
  const int a = add_chain(stages, "a", {devices.begin(), middle}, -1);
  const int b = add_chain(stages, "b", {middle, devices.end()}, -1);
  add_shard(stages, "join", options.devices, {a, b});
  return stages;
}

/// Chunk after chunk; every second one runs backwards through the devices where it is a wave.
Stages chunked_stages(const ShapeOptions& options, bool wave) {
  std::vector<int> devices;
  for (int chunk = 0; chunk < options.chunks; ++chunk) {
    for (int i = 0; i < options.devices; ++i) {
      devices.push_back(wave && chunk % 2 == 1 ? options.devices - 1 - i : i);
    }
  }
  Stages stages;
  add_chain(stages, "s", devices, -1);
  return stages;
}

struct Shape {
  std::function<Stages(const ShapeOptions&)> stages;
  bool halves = false;   ///< needs an even number of devices
  bool chunked = false;  ///< reads ShapeOptions::chunks
};

const std::vector<std::pair<std::string, Shape>>& shapes() {
  static const std::vector<std::pair<std::string, Shape>> table = {
      {"v", {v_stages}},
      {"x", {x_stages, true}},
      {"m", {m_stages}},
      {"nn", {nn_stages, true}},
      {"k", {k_stages, true}},
      {"looped", {[](const ShapeOptions& o) { return chunked_stages(o, false); }, false, true}},
      {"wave", {[](const ShapeOptions& o) { return chunked_stages(o, true); }, false, true}},
  };
  return table;
}

[[noreturn]] void refuse(const std::string& message) { throw InputError("", 0, message); }

void check(const std::string& name, const Shape& shape, const ShapeOptions& options) {
  constexpr int kMostStages = 65536;
  if (options.devices < 1)
    refuse("a placement needs at least 1 device, got " + std::to_string(options.devices));
  if (shape.halves && options.devices % 2 != 0) {
    refuse("shape " + name + " needs an even number of devices, got " + std::to_string(options.devices));
  }
  if (shape.chunked && options.chunks < 1) {
    refuse("shape " + name + " needs at least 1 chunk per device, got " + std::to_string(options.chunks));
  }
  if (options.devices > kMostStages / (shape.chunked ? options.chunks : 1)) {
    refuse("more than " + std::to_string(kMostStages) + " stages");
  }
  for (const Nanoseconds time :
       {options.forward, options.backward, options.weight, options.shard_forward, options.shard_backward}) {
    if (time < 0 || time > (Nanoseconds{1} << 53))
      refuse("the time of a block must be between 0 and 2^53 ns");
  }
  if (options.memory < 0 || options.capacity < 0) refuse("memory and capacity must not be negative");
}

/// Unrolls stages into the blocks of one micro-batch: forwards in model order, then backwards in reverse.
class Unroll {
 public:
  Unroll(const Stages& stages, const ShapeOptions& options)
      : stages_(stages), options_(options), consumers_(stages.size()), gradient_(stages.size(), -1) {
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
    return blocks_.emplace_back(std::move(block));
  }

  void add_forward(int s) {
    Block& block = add(s, Kind::forward, ".F", stages_[s].shard ? options_.shard_forward : options_.forward);
    // An inference keeps nothing: what a forward needs is free again when it ends.
    (options_.training ? block.memory : block.workspace) = options_.memory;
    for (const int input : stages_[s].inputs) block.after.push_back({input, 0});
  }

  void add_backward(int s) {
    const bool split = options_.weight > 0 && !stages_[s].shard;
    const Nanoseconds time = stages_[s].shard ? options_.shard_backward : options_.backward;
    Block& block = split ? add(s, Kind::backward_input, ".I", time) : add(s, Kind::backward, ".B", time);
    gradient_[s] = static_cast<int>(blocks_.size()) - 1;
    block.after.push_back({s, 0});
    for (const int consumer : consumers_[s]) block.after.push_back({gradient_[consumer], 0});
    if (!split) {
      block.memory = -options_.memory;
      return;
    }
    Block& weight = add(s, Kind::backward_weight, ".W", options_.weight);
    weight.memory = -options_.memory;
    weight.after.push_back({gradient_[s], 0});
  }

  const Stages& stages_;
  const ShapeOptions& options_;
  std::vector<Block> blocks_;
  std::vector<std::vector<int>> consumers_;  ///< by stage
  std::vector<int> gradient_;  ///< block that hands the gradient of a stage's input on, by stage
};

}  // namespace

const std::vector<std::string>& shape_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const auto& entry : shapes()) list.push_back(entry.first);
    return list;
  }();
  return names;
}

Placement shape(const std::string& name, const ShapeOptions& options) {
  const auto found =
      std::find_if(shapes().begin(), shapes().end(), [&](const auto& e) { return e.first == name; });
  if (found == shapes().end()) {
    const std::string near = nearest(name, shape_names());
    refuse("unknown shape \"" + name + "\"" + (near.empty() ? "" : ": did you mean \"" + near + "\"?"));
  }
  check(name, found->second, options);
  const Stages stages = found->second.stages(options);
  Placement placement;
  placement.name = name + "-shape-" + std::to_string(options.devices);
  if (found->second.chunked)
    placement.name = name + "-" + std::to_string(options.chunks) + "x" + std::to_string(options.devices);
  for (int d = 0; d < options.devices; ++d) {
    placement.devices.push_back({"device" + std::to_string(d), "", options.capacity, 0});
  }
  placement.blocks = Unroll(stages, options).blocks();
  return placement;
}

}  // namespace ostinato
