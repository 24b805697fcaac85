// SPDX-License-Identifier: Apache-2.0
#include "search/partition/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "search/bounds/feasible.h"
#include "search/files/digest.h"
#include "search/files/error.h"
#include "search/partition/stage_cost.h"
#include "search/partition/transit.h"
#include "search/placement/lanes.h"

namespace ostinato {
namespace {

using chain::Model;
using chain::StageCost;

/// A stage without the layers behind it that run on a lane of its device.
struct Part {
  Stage stage;
  Layers beside = {};
};

/// A stage ends where layers on a lane end, so that the next stage's are computed when needed. Lane layers
/// that a stage begins with are computed: what they hold would come before any block that counts it. So are
/// those of a stage that is sharded or, as asked, recomputes, and the model's last layer, with the loss. Such
/// a stage holds the lane, too.
std::vector<Part> parts_of(const Profile& profile, const PartitionOptions& options,
                           const std::vector<Stage>& stages) {
  std::vector<Part> parts;
  for (const Stage& stage : stages) {
    const bool may = options.lanes == LanesOf::all || (options.lanes == LanesOf::keeping && !stage.recompute);
    Part* last = nullptr;
    const auto add = [&] {
      Part& part = parts.emplace_back(Part{stage});
      part.stage.layers = {};
      return &part;
    };
    for (const int l : stage.layers) {
      const std::string& lane = profile.layers[l].lane;
      const bool last_of_all = l + 1 == static_cast<int>(profile.layers.size());
      const bool beside = may && !lane.empty() && !last_of_all && last != nullptr && !stage.sharded() &&
                          (last->beside.empty() || profile.layers[last->beside.front()].lane == lane);
      if (beside) {
        last->beside.push_back(l);
        continue;
      }
      if (last == nullptr || !last->beside.empty()) last = add();
      last->stage.layers.push_back(l);
    }
  }
  return parts;
}

/// Adds blocks stage by stage: all forwards first, then, in training, all backwards from the last stage to
/// the first.
class Builder {
 public:
  Builder(const Profile& profile, const PartitionOptions& options, const std::vector<Stage>& stages)
      : model_(chain::all_computing(profile, options)),
        parts_(parts_of(profile, options, stages)),
        inputs_(parts_.size()),
        readers_(parts_.size()),
        output_(parts_.size(), -1),
        gradient_(parts_.size(), -1) {
    placement_.name = profile.model;
    connect();
    add_devices();
    model_.links.write(placement_);
    add_lanes();
    add_layers();
    for (int s = 0; s < count(); ++s) add_forward(s);
    for (int s = count() - 1; s >= 0 && !options.inference; --s) add_backward(s);
  }

  Placement take() { return std::move(placement_); }

 private:
  /// Another stage, and the bytes that pass between the two.
  using Neighbours = std::map<int, Bytes>;

  int count() const { return static_cast<int>(parts_.size()); }

  void add_devices() {
    for (int d = 0; d < model_.devices(); ++d) {
      const std::string& kind = model_.cluster.kinds[model_.kind_of(d)].name;
      placement_.devices.push_back(
          {fmt::format("d{}", d), kind.empty() ? model_.profile.device.kind : kind, model_.memory_of(d), 0});
    }
    for (const Part& part : parts_) {
      costs_.push_back(cost_of(part));
      for (const int d : part.stage.devices) placement_.devices[d].static_memory += costs_.back().fixed;
    }
    for (int d = 0; d < model_.devices(); ++d)
      placement_.devices[d].static_memory += model_.rank.held + messages_on(d);
    placement_.hosts = model_.cluster.hosts(model_.rank.computing);
  }

  /// The times of the stage, and the memory of all its layers, because a lane counts none: what a layer there
  /// takes while it runs is held as long as what it keeps. That of a stage that recomputes keeps it all: it
  /// does not run again.
  StageCost cost_of(const Part& part) const {
    StageCost alone = cost_of_stage(model_, part.stage);
    if (part.beside.empty()) return alone;
    const StageCost beside = cost_of_run(model_, model_.kind_of(part.stage.devices.front()), part.beside);
    if (part.stage.recompute) {
      alone.sent = beside.in_flight(false) + beside.workspace();  // its input is what the stage makes
      return alone;
    }
    Stage all = part.stage;
    all.layers.add(part.beside);
    StageCost cost = cost_of_stage(model_, all);
    cost.forward = alone.forward;
    cost.backward = alone.backward;
    cost.backward_input = alone.backward_input;
    cost.backward_weight = alone.backward_weight;
    cost.halves = alone.halves;
    cost.sent += beside.workspace();
    return cost;
  }

  /// By device, as a file lists them: steps of a plan are in the order of its devices.
  void add_lanes() {
    lane_of_.assign(parts_.size(), -1);
    std::vector<int> order;
    for (int s = 0; s < count(); ++s)
      if (!parts_[s].beside.empty()) order.push_back(s);
    std::ranges::stable_sort(order, {}, [&](int s) { return parts_[s].stage.devices.front(); });
    for (const int s : order) {
      const std::string& lane = model_.profile.layers[parts_[s].beside.front()].lane;
      const int device = parts_[s].stage.devices.front();
      const int found = find_lane(placement_, device, lane);
      lane_of_[s] = found < 0 ? add_lane(placement_, device, lane) : found;
    }
    held_.resize(parts_.size());
    for (int s = 0; s < count(); ++s)
      for (const int l : parts_[s].stage.layers) hold(s, model_.profile.layers[l].lane);
    link_lanes(placement_);
  }

  /// What a stage computes of a lane's layers holds that lane, where one of its devices has it: exchanges of
  /// the same ranks must be in one order on all of them.
  void hold(int stage, const std::string& lane) {
    const std::vector<int>& devices = parts_[stage].stage.devices;
    const auto has_it = [&](int d) { return find_lane(placement_, d, lane) >= 0; };
    if (lane.empty() || std::ranges::none_of(devices, has_it)) return;
    for (const int d : devices)
      held_[stage].insert(has_it(d) ? find_lane(placement_, d, lane) : add_lane(placement_, d, lane));
  }

  bool is_on(int stage, int device) const {
    const std::vector<int>& devices = parts_[stage].stage.devices;
    return std::find(devices.begin(), devices.end(), device) != devices.end();
  }

  /// What these hand to stage s without a message, on the device where that is most.
  Bytes handed_on(const Neighbours& others, int s) const {
    Bytes most = 0;
    for (const int device : parts_[s].stage.devices) {
      Bytes bytes = 0;
      for (const auto& [stage, carried] : others) bytes += is_on(stage, device) ? carried : 0;
      most = std::max(most, bytes);
    }
    return model_.rank.buffers == 0 ? 0 : most;
  }

  /// As transit.h says.
  Bytes messages_on(int device) const {
    std::set<Bytes> sizes;
    Bytes gradient = 0;
    for (int s = 0; s < count(); ++s) {
      if (!is_on(s, device)) continue;
      Bytes in = 0;
      for (const auto& [stage, bytes] : inputs_[s]) {
        if (is_on(stage, device)) continue;
        sizes.insert(bytes);
        in += bytes;
      }
      gradient = std::max(gradient, held_when_sent(in));
      for (const auto& [stage, bytes] : readers_[s]) {
        if (!is_on(stage, device)) sizes.insert(bytes);
      }
    }
    if (model_.rank.buffers == 0) return 0;
    return gradient + model_.rank.buffers * std::accumulate(sizes.begin(), sizes.end(), Bytes{0});
  }

  /// An output that several layers of a stage read is carried to it once.
  void connect() {
    std::vector<int> stage_of(model_.profile.layers.size());
    for (int s = 0; s < count(); ++s) {
      for (const int l : parts_[s].stage.layers) stage_of[l] = s;
      for (const int l : parts_[s].beside) stage_of[l] = s;
    }
    for (int s = 0; s < count(); ++s) {
      std::map<int, Bytes> read;
      for (const int l : parts_[s].stage.layers) {
        for (const LayerInput& input : model_.graph.inputs(l)) {
          if (stage_of[input.layer] != s) read[input.layer] = std::max(read[input.layer], input.bytes);
        }
      }
      for (const auto& [layer, bytes] : read) inputs_[s][stage_of[layer]] += bytes;
      for (const auto& [input, bytes] : inputs_[s]) readers_[input][s] = bytes;
    }
  }

  /// In the order in which a list of layers runs them, where there is one.
  void add_layers() {
    bool runs = true;
    for (int s = 0; s < count(); ++s) {
      Stage& stage = placement_.stages.emplace_back(parts_[s].stage);
      stage.name = name(s);
      std::sort(stage.devices.begin(), stage.devices.end());
      runs = runs && stage.layers.runs().size() == 1;
      if (lane_of_[s] >= 0)
        placement_.stages.push_back(
            {.name = lane_name(s), .layers = parts_[s].beside, .devices = {lane_of_[s]}});
    }
    if (!runs) return;
    std::sort(placement_.stages.begin(), placement_.stages.end(),
              [](const Stage& a, const Stage& b) { return a.layers.front() < b.layers.front(); });
  }

  static std::string name(int s) { return fmt::format("s{}", s); }
  std::string lane_name(int s) const { return name(s) + ":" + placement_.devices[lane_of_[s]].lane; }

  /// What the layers on the lane of a stage do, behind `before`; its index.
  int add_beside(int s, Kind kind, int before) {
    const int device = parts_[s].stage.devices.front();
    Nanoseconds time = 0;
    for (const int l : parts_[s].beside) {
      const LayerCost& layer = model_.on_kind[model_.kind_of(device)][l];
      time += kind == Kind::forward ? layer.forward.median : layer.backward.median;
    }
    Block block;
    block.stage = lane_name(s);
    block.name = block.stage + (kind == Kind::forward ? ".F" : ".B");
    block.kind = kind;
    block.devices = {lane_of_[s]};
    block.time = time;
    if (before >= 0) block.after.push_back({before, 0});
    placement_.blocks.push_back(std::move(block));
    return static_cast<int>(placement_.blocks.size()) - 1;
  }

  Block& add(int s, Kind kind, const char* suffix, Nanoseconds time, Bytes workspace) {
    Block block;
    block.stage = name(s);
    block.name = block.stage + suffix;
    block.kind = kind;
    block.devices = parts_[s].stage.devices;
    block.devices.insert(block.devices.end(), held_[s].begin(), held_[s].end());
    std::sort(block.devices.begin(), block.devices.end());
    block.time = time;
    block.workspace = workspace;
    return placement_.blocks.emplace_back(std::move(block));
  }

  void add_forward(int s) {
    const StageCost& cost = costs_[s];
    // The forward runs on a copy, beside the batch that was read and what another stage of the rank made.
    const Bytes beside = cost.data + handed_on(inputs_[s], s);
    Block& block = add(s, Kind::forward, ".F", cost.forward, cost.forward_workspace + beside);
    block.memory = cost.in_flight(parts_[s].stage.recompute);
    for (const auto& [input, bytes] : inputs_[s]) block.after.push_back({output_[input], bytes});
    forward_.push_back(output_[s] = static_cast<int>(placement_.blocks.size()) - 1);
    if (lane_of_[s] >= 0) output_[s] = add_beside(s, Kind::forward, forward_[s]);
  }

  /// The gradients that come back to a stage.
  void wait_for_gradients(int s, Block& block) const {
    for (auto reader = readers_[s].rbegin(); reader != readers_[s].rend(); ++reader)
      block.after.push_back({gradient_[reader->first], reader->second});
  }

  void add_backward(int s) {
    const StageCost& cost = costs_[s];
    const bool split = model_.split && parts_[s].stage.devices.size() == 1 && cost.halves;
    const Nanoseconds whole = model_.split && parts_[s].stage.devices.size() == 1
                                  ? cost.backward_input + cost.backward_weight
                                  : cost.backward;
    const Bytes workspace = cost.backward_workspace + handed_on(readers_[s], s);
    int beside = -1;
    if (lane_of_[s] >= 0) {
      beside = add_beside(s, Kind::backward, output_[s]);
      wait_for_gradients(s, placement_.blocks[beside]);
    }
    Block& block = split ? add(s, Kind::backward_input, ".I", cost.backward_input, workspace)
                         : add(s, Kind::backward, ".B", whole, workspace);
    block.after.push_back({forward_[s], 0});
    if (beside >= 0) {
      block.after.push_back({beside, 0});
    } else {
      wait_for_gradients(s, block);
    }
    gradient_[s] = static_cast<int>(placement_.blocks.size()) - 1;
    const Bytes taken = placement_.blocks[forward_[s]].memory;
    if (!split) {
      block.memory = -taken;
      return;
    }
    // What a split backward recomputed serves its second half as well, for which gradients wait.
    const Bytes again = cost.waiting + (parts_[s].stage.recompute ? cost.kept : 0);
    block.memory = again - cost.sent;  // which has arrived
    block.workspace = std::max<Bytes>(0, block.workspace - std::max<Bytes>(0, again - cost.sent));
    Block& weight = add(s, Kind::backward_weight, ".W", cost.backward_weight,
                        std::max(cost.weight_workspace, workspace + cost.sent - again));
    weight.after.push_back({gradient_[s], 0});
    weight.memory = -(taken - cost.sent) - again;
  }

  const Model model_;
  const std::vector<Part> parts_;
  std::vector<StageCost> costs_;
  std::vector<Neighbours> inputs_, readers_;  ///< by stage
  std::vector<int> lane_of_;         ///< by stage: where the layers beside it run; -1: there are none
  std::vector<std::set<int>> held_;  ///< by stage: lanes on which nothing runs meanwhile
  std::vector<int> forward_;         ///< blocks, by stage
  std::vector<int> output_;          ///< block that hands on the stage's output ...
  std::vector<int> gradient_;        ///< ... and the gradient of its input
  Placement placement_;
};

}  // namespace

namespace {

void add_end_of_step(ModelFacts& facts, const Model& model, const std::vector<Stage>& stages) {
  std::vector<Bytes> together(model.devices()), alone(together);
  facts.step_time.assign(model.devices(), 0);
  for (const Stage& stage : stages) {
    const StageCost cost = cost_of_stage(model, stage);
    for (const int d : stage.devices) {
      together[d] += cost.step_together;
      alone[d] = std::max(alone[d], cost.step_alone);
      facts.step_time[d] += cost.step_time;
    }
  }
  for (int d = 0; d < model.devices(); ++d)
    facts.step_memory.push_back(model.end_of_step(together[d], alone[d]));
  if (std::ranges::all_of(facts.step_time, [](Nanoseconds time) { return time == 0; })) facts.step_time = {};
  for (Nanoseconds& time : facts.step_time) time += model.rank.step_time;
}

}  // namespace

Placement place_stages(const Profile& profile, const PartitionOptions& options,
                       const std::vector<Stage>& stages) {
  return Builder(profile, options, stages).take();
}

ModelFacts facts_of(const Profile& profile, const PartitionOptions& options,
                    const std::vector<Stage>& stages) {
  ModelFacts made;
  made.micro_batch_size = profile.micro_batch_size;
  add_end_of_step(made, Model(profile, options), stages);
  if (!is_sha256(profile.model_sha256)) return made;
  made.sha256 = profile.model_sha256;
  const auto known = [](const LayerCost& layer) { return !layer.digest.empty(); };
  if (!std::all_of(profile.layers.begin(), profile.layers.end(), known)) return made;
  for (const LayerCost& layer : profile.layers) made.layers.push_back(layer.name + " " + layer.digest);
  return made;
}

bool step_fits(const ModelFacts& facts, const Placement& placement) {
  for (std::size_t d = 0; d < facts.step_memory.size(); ++d) {
    const Device& device = placement.devices[d];
    // 0: not for the step's sake.
    const Bytes room = std::max<Bytes>(0, device.memory - device.static_memory);
    if (device.memory != kUnlimited && facts.step_memory[d] > room) return false;
  }
  return true;
}

void check_memory(const ModelFacts& facts, const Placement& placement, int micro_batches) {
  const auto refuse = [](const std::string& why) {
    throw InputError("", 0, "the stages that were found do not fit the memory, but others may: " + why);
  };
  if (!step_fits(facts, placement)) refuse("the optimizer's step needs more than a device has");
  try {
    const Instance instance(placement);
    fitting_order(instance, Bounds(instance), micro_batches);
  } catch (const InfeasibleError& error) {
    refuse(error.what());
  }
}

std::vector<WholeBackward> whole_backwards(const Profile& profile, const PartitionOptions& options,
                                           const std::vector<Stage>& stages) {
  std::vector<WholeBackward> result;
  if (!options.split_backward) return result;
  const Model model(profile, options);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (stages[s].devices.size() != 1) continue;
    const std::vector<LayerCost>& layers = model.on_kind[model.kind_of(stages[s].devices.front())];
    WholeBackward whole{.stage = static_cast<int>(s), .layers = {}};
    for (const int l : stages[s].layers) {
      if (!layers[l].halves()) whole.layers.push_back(l);
    }
    if (!whole.layers.empty()) result.push_back(std::move(whole));
  }
  return result;
}

}  // namespace ostinato
