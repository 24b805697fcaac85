// SPDX-License-Identifier: Apache-2.0
#include "search/partition/stage_cost.h"
#include "search/plan/sends_ahead.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "search/partition/inference.h"
#include "search/partition/transit.h"

namespace ostinato::chain {
namespace {

/// A stage with such a layer keeps its backward whole, which then takes the sum of all halves.
void count_whole_as_half(LayerCost& layer) {
  if (layer.halves()) return;
  layer.backward_input.median = layer.backward.median;
  layer.backward_weight.median = 0;
}

/// No layer lets go of more than was kept: of two runs that end alike, the longer keeps as much at least.
void release_kept_alone(std::vector<LayerCost>& layers) {
  for (LayerCost& layer : layers) {
    for (LayerInput& part : layer.released) part.bytes = std::min(part.bytes, layers.at(part.layer).kept);
  }
}

std::vector<std::vector<LayerCost>> layers_by_kind(const Cluster& cluster, const Profile& profile,
                                                   const PartitionOptions& options) {
  std::vector<std::vector<LayerCost>> result;
  for (const DeviceKind& kind : cluster.kinds) {
    std::vector<LayerCost>& layers = result.emplace_back(layers_on(kind, profile));
    if (options.lanes != LanesOf::none) leave_to_lanes(layers);
    if (options.inference) std::transform(layers.begin(), layers.end(), layers.begin(), forward_only);
    for (LayerCost& layer : layers) layer.kept += std::exchange(layer.labels, 0);
    if (options.split_backward) std::for_each(layers.begin(), layers.end(), count_whole_as_half);
    release_kept_alone(layers);
  }
  return result;
}

/// What the stage reads from outside: the whole input of a layer that reads nothing from the stage, else what
/// comes from elsewhere.
Bytes input_of(const Model& model, const Layers& layers) {
  Bytes input = 0;
  for (const int l : layers) {
    Bytes outside = 0;
    bool inside = false;
    for (const LayerInput& from : model.graph.inputs(l)) {
      if (layers.contains(from.layer)) {
        inside = true;
      } else {
        outside += from.bytes;
      }
    }
    input += inside ? outside : model.profile.layers[l].input_bytes;
  }
  return input;
}

bool read_elsewhere(const Model& model, const Layers& layers, int layer) {
  const auto& readers = model.graph.readers(layer);
  return std::any_of(readers.begin(), readers.end(), [&](int reader) { return !layers.contains(reader); });
}

/// Bytes that other stages read from this one.
Bytes output_of(const Model& model, const Layers& layers) {
  Bytes output = 0;
  for (const int l : layers)
    if (read_elsewhere(model, layers, l)) output += model.profile.layers[l].output_bytes;
  return output;
}

/// By layer, what it reads from other stages: an output once, however many layers read it.
std::map<int, Bytes> received_by(const Model& model, const Layers& layers) {
  std::map<int, Bytes> received;
  for (const int l : layers) {
    for (const LayerInput& from : model.graph.inputs(l))
      if (!layers.contains(from.layer)) received[from.layer] = std::max(received[from.layer], from.bytes);
  }
  return received;
}

/// Of `passed` or `released`: what belongs to layers of the stage.
Bytes of_layers(const std::vector<LayerInput>& parts, const Layers& layers) {
  Bytes bytes = 0;
  for (const LayerInput& part : parts) bytes += layers.contains(part.layer) ? part.bytes : 0;
  return bytes;
}

void take_larger(StageCost& cost, const StageCost& other) {
  const auto take = [&](auto StageCost::*field) { cost.*field = std::max(cost.*field, other.*field); };
  for (const auto field :
       {&StageCost::forward, &StageCost::again, &StageCost::backward, &StageCost::backward_input,
        &StageCost::backward_weight, &StageCost::kept, &StageCost::input, &StageCost::forward_workspace,
        &StageCost::backward_workspace, &StageCost::forward_peak, &StageCost::fixed,
        &StageCost::step_together, &StageCost::step_alone, &StageCost::step_time, &StageCost::sent,
        &StageCost::data, &StageCost::received, &StageCost::handed_on})
    take(field);
}

}  // namespace

Nanoseconds all_reduce(const LinkTable& links, const std::vector<int>& devices, Bytes bytes) {
  const int parts = static_cast<int>(devices.size());
  Nanoseconds slowest = 0;
  for (int i = 0; i < parts; ++i) {
    const Link& link = links.between(devices[i], devices[(i + 1) % parts]);
    slowest = std::max(slowest, link.time(share(bytes, parts)));
  }
  return bytes > 0 ? 2 * (parts - 1) * slowest : 0;
}

Nanoseconds block_overhead(const RankCost& rank, Kind kind) {
  switch (kind) {
    case Kind::forward:
      return rank.forward;
    case Kind::backward:
    case Kind::backward_input:
    case Kind::backward_weight:
      return rank.backward;
    default:
      return 0;
  }
}

Model::Model(const Profile& of, const PartitionOptions& options)
    : profile(of),
      cluster(cluster_of(options)),
      graph(of),
      on_kind(layers_by_kind(cluster, of, options)),
      links(options.transfers ? LinkTable(of, cluster) : LinkTable()),
      split(options.split_backward),
      inference(options.inference),
      rank(inference ? RankCost{.forward = of.rank.forward} : of.rank) {}

Model all_computing(const Profile& profile, PartitionOptions options) {
  options.lanes = LanesOf::none;
  return {profile, options};
}

namespace {

/// The sums alone. Forwards run in the layers' order and backwards in the opposite one, so a layer meets what
/// those before it keep.
StageCost cost_of_layers(const Model& model, int kind, const Layers& layers) {
  StageCost cost;
  Bytes released = 0;  // by the layer at hand
  cost.input = input_of(model, layers);
  for (const int l : layers) {
    const LayerCost& layer = model.on_kind[kind][l];
    const Bytes passed = of_layers(layer.passed, layers);
    released = of_layers(layer.released, layers);
    cost.forward += layer.forward.median;
    cost.again += *layer.recompute;
    cost.backward += layer.backward.median;
    cost.backward_input += layer.backward_input.median;
    cost.backward_weight += layer.backward_weight.median;
    cost.waiting += layer.waiting;
    cost.weight_workspace = std::max(cost.weight_workspace, layer.weight_workspace);
    cost.step_together += layer.step_together;
    cost.step_alone = std::max(cost.step_alone, layer.step_alone);
    cost.step_time += layer.step_time;
    cost.halves = cost.halves && layer.halves();
    cost.kept += layer.kept;
    if (read_elsewhere(model, layers, l)) cost.sent += held_when_sent(layer.sent);
    cost.forward_workspace = std::max(cost.forward_workspace, cost.kept + layer.forward_workspace + passed);
    cost.backward_workspace =
        std::max(cost.backward_workspace, cost.kept + layer.backward_workspace - released);
    cost.forward_peak = std::max(cost.forward_peak, layer.kept + layer.forward_workspace + passed);
    cost.fixed += layer.held();
  }
  cost.kept -= released;  // which was sent
  const std::map<int, Bytes> received = received_by(model, layers);
  for (const auto& [layer, bytes] : received) cost.received += bytes;
  cost.handed_on = output_of(model, layers);
  if (model.rank.buffers > 0 && received.empty()) cost.data = cost.input;
  // The output is in a forward's peak, and when a backward begins it has been received.
  const Bytes held = cost.kept + cost.sent;
  cost.forward_workspace = std::max<Bytes>(0, cost.forward_workspace - held);
  cost.backward_workspace = std::max<Bytes>(0, cost.backward_workspace - held);
  return cost;
}

/// Of an inference: where the input and the messages of a stage lie.
void add_messages(StageCost& cost, Bytes output) {
  cost.fixed += messages_ahead(cost.input, output);
  cost.forward_workspace += std::exchange(cost.input, 0);
}

}  // namespace

StageCost cost_of_run(const Model& model, int kind, const Layers& layers) {
  StageCost cost = cost_of_layers(model, kind, layers);
  if (model.inference) add_messages(cost, output_of(model, layers));
  return cost;
}

StageCost cost_on_kind(const Model& model, int kind, const Layers& layers) {
  StageCost cost = cost_of_run(model, kind, layers);
  cost.forward += block_overhead(model.rank, Kind::forward);
  cost.backward += block_overhead(model.rank, Kind::backward);
  cost.backward_input += block_overhead(model.rank, Kind::backward_input);
  cost.backward_weight += block_overhead(model.rank, Kind::backward_weight);
  return cost;
}

StageCost cost_of_shard(const Model& model, const Layers& layers, const std::vector<int>& devices) {
  std::set<int> kinds;
  for (const int d : devices) kinds.insert(model.kind_of(d));
  StageCost cost;
  for (const int kind : kinds) take_larger(cost, cost_of_layers(model, kind, layers));
  const int parts = static_cast<int>(devices.size());
  // The halves of its backward are not run apart: every device would have to join in both.
  if (model.split) cost.backward = cost.backward_input + cost.backward_weight;
  const Bytes output = output_of(model, layers);
  const Nanoseconds reduced = all_reduce(model.links, devices, output);
  cost.forward = share(cost.forward, parts) + reduced + block_overhead(model.rank, Kind::forward);
  cost.again = share(cost.again, parts) + reduced;
  if (!model.inference)
    cost.backward = share(cost.backward, parts) + all_reduce(model.links, devices, cost.input) +
                    block_overhead(model.rank, Kind::backward);
  cost.backward_input = cost.backward_weight = 0;
  cost.kept = share(cost.kept, parts);
  cost.forward_workspace = share(cost.forward_workspace, parts) + output;
  cost.forward_peak = share(cost.forward_peak, parts) + output;
  cost.backward_workspace = model.inference ? 0 : share(cost.backward_workspace, parts) + cost.input;
  cost.fixed = share(cost.fixed, parts);
  cost.step_together = share(cost.step_together, parts);
  cost.step_alone = share(cost.step_alone, parts);
  cost.step_time = share(cost.step_time, parts);
  cost.waiting = 0;
  if (model.inference) add_messages(cost, output);
  return cost;
}

StageCost cost_of_stage(const Model& model, const Stage& stage) {
  StageCost cost = stage.sharded() ? cost_of_shard(model, stage.layers, stage.devices)
                                   : cost_on_kind(model, model.kind_of(stage.devices.front()), stage.layers);
  if (stage.recompute) {
    cost.backward += cost.again;
    cost.backward_input += cost.again;
    cost.backward_workspace = cost.workspace() + cost.kept;  // which the second forward makes again
    cost.forward_workspace = std::max<Bytes>(0, cost.forward_peak - cost.sent);
  }
  return cost;
}

}  // namespace ostinato::chain
