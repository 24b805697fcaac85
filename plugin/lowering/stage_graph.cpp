// SPDX-License-Identifier: Apache-2.0
#include "plugin/lowering/stage_graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "search/files/error.h"
#include "search/placement/lanes.h"

namespace ostinato {
namespace {

[[noreturn]] void refuse(const Placement& placement, const std::string& message) {
  throw InputError("", 0, "placement '" + placement.name + "' cannot be lowered: " + message);
}

std::string quoted(const std::string& name) { return "'" + name + "'"; }

/// "device 1", "devices 0, 2, 3".
std::string named(const std::vector<int>& devices) {
  std::string text = devices.size() == 1 ? "device" : "devices";
  for (std::size_t i = 0; i < devices.size(); ++i) text += (i ? ", " : " ") + std::to_string(devices[i]);
  return text;
}

/// The slot of `blocks` that a block of this kind fills.
int& slot(StageBlocks& blocks, Kind kind) {
  if (kind == Kind::forward) return blocks.forward;
  return kind == Kind::backward_weight ? blocks.weight : blocks.backward;
}

void check_block(const Placement& placement, const Block& block) {
  if (block.kind == Kind::other) {
    refuse(placement, "block " + quoted(block.name) +
                          " is of kind \"other\"; a stage can only run forward and backward blocks");
  }
}

/// The slot of an offloading block.
int& slot(OffloadBlocks& blocks, Kind kind, bool on_lane) {
  if (kind == Kind::offload) return on_lane ? blocks.out : blocks.freed;
  return on_lane ? blocks.back : blocks.taken;
}

bool is_offloading(const Block& block) { return block.kind == Kind::offload || block.kind == Kind::load; }

/// The stages in model order, without their devices: as [[stages]] lists them, else as a topological order of
/// the forwards meets them.
std::vector<ProgramStage> listed_stages(const Placement& placement) {
  std::vector<ProgramStage> stages;
  for (const Stage& stage : placement.stages) {
    stages.push_back({stage});
    stages.back().devices.clear();  // each block says where it runs
  }
  if (!stages.empty()) return stages;
  std::unordered_map<std::string, bool> seen;
  for (const int b : topological_order(placement)) {
    const std::string& name = placement.blocks[b].stage;
    if (placement.blocks[b].kind == Kind::forward && !std::exchange(seen[name], true))
      stages.push_back({{.name = name}});
  }
  return stages;
}

/// What a block holds of each of its devices: lanes, ascending; the empty one, first, computes.
std::vector<std::string> lanes_of(const Placement& placement, const Block& block) {
  std::map<int, std::set<std::string>> held;  // by device
  for (const int d : block.devices) held[device_of(placement, d)].insert(placement.devices[d].lane);
  const std::set<std::string>& first = held.begin()->second;
  for (const auto& [device, lanes] : held)
    if (lanes != first)
      refuse(placement, "block " + quoted(block.name) + " holds different lanes of devices " +
                            std::to_string(held.begin()->first) + " and " + std::to_string(device));
  return {first.begin(), first.end()};
}

/// Devices of a block, its lanes' among them; ascending.
std::vector<int> ranks_of(const Placement& placement, const Block& block) {
  std::vector<int> ranks;
  for (const int d : block.devices) ranks.push_back(device_of(placement, d));
  std::ranges::sort(ranks);
  const auto [end, last] = std::ranges::unique(ranks);
  ranks.erase(end, last);
  return ranks;
}

void place_blocks(const Placement& placement, StageGraph& graph) {
  std::unordered_map<std::string, int> index;
  graph.stages = listed_stages(placement);
  for (std::size_t s = 0; s < graph.stages.size(); ++s)
    index.emplace(graph.stages[s].name, static_cast<int>(s));
  graph.blocks.resize(graph.stages.size());
  graph.offloads.resize(graph.stages.size());
  for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
    const Block& block = placement.blocks[b];
    check_block(placement, block);
    const auto found = index.find(block.stage);
    if (found == index.end()) {
      refuse(placement, "block " + quoted(block.name) + " runs stage " + quoted(block.stage) +
                            ", which has no forward block or is not listed in [[stages]]");
    }
    ProgramStage& stage = graph.stages[found->second];
    int& place = is_offloading(block)
                     ? slot(graph.offloads[found->second], block.kind, runs_on_lane(placement, block))
                     : slot(graph.blocks[found->second], block.kind);
    if (place >= 0) {
      refuse(placement, "blocks " + quoted(placement.blocks[place].name) + " and " + quoted(block.name) +
                            " are both the " + to_string(block.kind) + " of stage " + quoted(block.stage));
    }
    graph.stage_of[b] = found->second;
    if (is_offloading(block)) {
      place = static_cast<int>(b);
      continue;  // check_offloads()
    }
    const std::vector<int> ranks = ranks_of(placement, block);
    if (!stage.devices.empty() && stage.devices != ranks) {
      refuse(placement, "stage " + quoted(block.stage) + " runs on " + named(stage.devices) + " and on " +
                            named(ranks) + "; all its blocks must be where its weights are");
    }
    std::vector<std::string> holds = lanes_of(placement, block);
    const std::string lane = holds.front();
    holds.erase(holds.begin());
    if (!stage.devices.empty() && (stage.lane != lane || stage.holds != holds))
      refuse(placement, "blocks of stage " + quoted(block.stage) + " are on different lanes");
    place = static_cast<int>(b);
    stage.devices = ranks;
    stage.lane = lane;
    stage.holds = std::move(holds);
  }
}

void check_stages(const Placement& placement, StageGraph& graph) {
  for (std::size_t s = 0; s < graph.stages.size(); ++s) {
    const StageBlocks& blocks = graph.blocks[s];
    const std::string stage = "stage " + quoted(graph.stages[s].name);
    if (blocks.forward < 0) refuse(placement, stage + " has no forward block");
    const bool split = blocks.backward >= 0 && placement.blocks[blocks.backward].kind == Kind::backward_input;
    if (blocks.weight >= 0 && !split) {
      refuse(placement, stage + " has a backward_weight block without a backward_input block");
    }
    if (split && blocks.weight < 0) {
      refuse(placement, stage + " has a backward_input block without a backward_weight block");
    }
    graph.stages[s].has_backward = blocks.backward >= 0;
  }
}

bool comes_after(const Placement& placement, int block, int input) {
  const auto& after = placement.blocks[block].after;
  return std::any_of(after.begin(), after.end(), [&](const Dependency& d) { return d.block == input; });
}

/// Out, freed, taken, back: each behind the one before, between the forward and the backward.
void check_offloads(const Placement& placement, StageGraph& graph) {
  for (std::size_t s = 0; s < graph.stages.size(); ++s) {
    const OffloadBlocks& offload = graph.offloads[s];
    ProgramStage& stage = graph.stages[s];
    const std::vector<int> order = {graph.blocks[s].forward, offload.out,  offload.freed,
                                    offload.taken,           offload.back, graph.blocks[s].backward};
    const auto missing = std::count(order.begin() + 1, order.end() - 1, -1);
    if (missing == 4) continue;
    const std::string name = "stage " + quoted(stage.name);
    if (missing > 0 || !stage.has_backward)
      refuse(placement,
             name +
                 " is offloaded in part: between its forward and its backward it needs, one after "
                 "the other, an \"offload\" on a lane of its device and one on the device, which "
                 "gives memory back, a \"load\" on the device, which takes it, and one on the lane");
    for (std::size_t i = 1; i < order.size(); ++i)
      if (!comes_after(placement, order[i], order[i - 1]))
        refuse(placement, "block " + quoted(placement.blocks[order[i]].name) + " must have " +
                              quoted(placement.blocks[order[i - 1]].name) + " in `after`");
    if (stage.sharded() || stage.recompute || !stage.lane.empty())
      refuse(placement, name + " is offloaded, and is " +
                            (stage.sharded()   ? "on several devices"
                             : stage.recompute ? "recomputed"
                                               : "on a lane") +
                            ": only what one device keeps of a stage that it computes can be offloaded");
    const Device& lane = placement.devices[placement.blocks[offload.out].devices.front()];
    for (const int b : {offload.out, offload.freed, offload.taken, offload.back}) {
      const Block& block = placement.blocks[b];
      const bool on_lane = b == offload.out || b == offload.back;
      const bool here = block.devices.size() == 1 && ranks_of(placement, block) == stage.devices;
      if (!here || (on_lane && placement.devices[block.devices.front()].lane != lane.lane))
        refuse(placement, "block " + quoted(block.name) + " must be on " + named(stage.devices) +
                              (on_lane ? ", on one lane of it" : ""));
    }
    stage.offload = lane.lane;
  }
}

void connect(const Placement& placement, StageGraph& graph) {
  for (std::size_t s = 0; s < graph.stages.size(); ++s) {
    for (const Dependency& input : placement.blocks[graph.blocks[s].forward].after) {
      const int from = graph.stage_of[input.block];
      if (placement.blocks[input.block].kind != Kind::forward) continue;  // check_dependencies() looks at it
      graph.stages[s].inputs.push_back(from);
      graph.stages[from].outputs.push_back(static_cast<int>(s));
      graph.stages[from].output_bytes = std::max(graph.stages[from].output_bytes, input.bytes);
    }
  }
}

/// Every gradient has its way back: along a -> b, the backward of a waits for the backward of b.
void check_gradients(const Placement& placement, const StageGraph& graph) {
  for (std::size_t a = 0; a < graph.stages.size(); ++a) {
    if (!graph.stages[a].has_backward) continue;
    const std::string& name = placement.blocks[graph.blocks[a].backward].name;
    for (const int b : graph.stages[a].outputs) {
      if (!graph.stages[b].has_backward) {
        refuse(placement, "stage " + quoted(graph.stages[b].name) + " has no backward, but stage " +
                              quoted(graph.stages[a].name) + ", which feeds it, waits for its gradient");
      }
      const std::string& gradient = placement.blocks[graph.blocks[b].backward].name;
      if (!comes_after(placement, graph.blocks[a].backward, graph.blocks[b].backward)) {
        refuse(placement, "block " + quoted(name) + " must have " + quoted(gradient) +
                              " in `after`: it needs the gradient that this block computes");
      }
    }
  }
}

/// What crosses devices must be activations along an edge or gradients back along one: there is no message
/// for the rest.
void check_dependencies(const Placement& placement, const StageGraph& graph) {
  const auto joined = [&](int from, int to) {
    const auto& outputs = graph.stages[from].outputs;
    return std::find(outputs.begin(), outputs.end(), to) != outputs.end();
  };
  for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
    const Block& block = placement.blocks[b];
    const int to = graph.stage_of[b];
    for (const Dependency& input : block.after) {
      const Block& source = placement.blocks[input.block];
      const int from = graph.stage_of[input.block];
      if (std::ranges::includes(graph.stages[from].devices, graph.stages[to].devices)) continue;
      const bool activation = source.kind == Kind::forward && block.kind == Kind::forward;
      const bool gradient = static_cast<int>(b) == graph.blocks[to].backward &&
                            input.block == graph.blocks[from].backward && joined(to, from);
      if (!activation && !gradient) {
        refuse(placement, "block " + quoted(block.name) + " on " + named(graph.stages[to].devices) +
                              " waits for " + quoted(source.name) + " on " +
                              named(graph.stages[from].devices) +
                              ", which sends it neither activations nor a gradient");
      }
    }
  }
}

}  // namespace

StageGraph stage_graph(const Placement& placement) {
  StageGraph graph;
  graph.stage_of.assign(placement.blocks.size(), -1);
  place_blocks(placement, graph);
  check_stages(placement, graph);
  check_offloads(placement, graph);
  connect(placement, graph);
  check_gradients(placement, graph);
  check_dependencies(placement, graph);
  return graph;
}

}  // namespace ostinato
