// SPDX-License-Identifier: Apache-2.0
#include "search/placement/shape_stages.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ostinato {
namespace {

using Stages = std::vector<ShapeStage>;

std::vector<int> all_devices(int devices) {
  std::vector<int> all(devices);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Returns the index of the stage.
int add_stage(Stages& stages, std::string name, std::vector<int> devices, std::vector<int> inputs) {
  ShapeStage& stage = stages.emplace_back();
  stage.name = std::move(name);
  stage.devices = std::move(devices);
  stage.inputs = std::move(inputs);
  return static_cast<int>(stages.size()) - 1;
}

/// Appends a chain of stages name0, name1, ... on the given devices, fed by stage `input` (-1: by nothing).
/// Returns the index of its last stage.
int add_chain(Stages& stages, const std::string& name, const std::vector<int>& devices, int input) {
  for (std::size_t i = 0; i < devices.size(); ++i) {
    std::vector<int> inputs;
    if (input >= 0) inputs.push_back(input);
    input = add_stage(stages, name + std::to_string(i), {devices[i]}, std::move(inputs));
  }
  return input;
}

int add_shard(Stages& stages, const std::string& name, int devices, std::vector<int> inputs) {
  const int shard = add_stage(stages, name, all_devices(devices), std::move(inputs));
  stages[shard].shard = true;
  return shard;
}

Stages v_stages(int devices, int) {
  Stages stages;
  add_chain(stages, "s", all_devices(devices), -1);
  return stages;
}

Stages x_stages(int devices, int) {
  Stages stages;
  std::vector<int> way = all_devices(devices);
  add_chain(stages, "a", way, -1);
  std::reverse(way.begin(), way.end());
  add_chain(stages, "b", way, -1);
  return stages;
}

Stages m_stages(int devices, int) {
  Stages stages;
  const int embed = add_shard(stages, "embed", devices, {});
  add_chain(stages, "s", all_devices(devices), embed);
  return stages;
}

/// An encoder on the first `first` devices, a decoder on the rest, an embedding before each.
Stages encoder_decoder(int devices, int first) {
  Stages stages;
  const std::vector<int> all = all_devices(devices);
  const int embed = add_shard(stages, "encoder_embed", devices, {});
  const int encoder = add_chain(stages, "encoder", {all.begin(), all.begin() + first}, embed);
  const int second = add_shard(stages, "decoder_embed", devices, {encoder});
  add_chain(stages, "decoder", {all.begin() + first, all.end()}, second);
  return stages;
}

Stages nn_stages(int devices, int) { return encoder_decoder(devices, devices / 2); }

Stages nn_first_stages(int devices, int) { return encoder_decoder(devices, 1); }

Stages multimodal_stages(int devices, int) {
  Stages stages;
  const int embed = add_shard(stages, "embed", devices, {});
  const int last = add_chain(stages, "s", all_devices(devices), embed);
  add_shard(stages, "loss", devices, {last});
  return stages;
}

Stages k_stages(int devices, int) {
  Stages stages;
  const std::vector<int> all = all_devices(devices);
  const auto middle = all.begin() + devices / 2;
  const int a = add_chain(stages, "a", {all.begin(), middle}, -1);
  const int b = add_chain(stages, "b", {middle, all.end()}, -1);
  add_shard(stages, "join", devices, {a, b});
  return stages;
}

Stages looped_stages(int devices, int chunks) {
  std::vector<int> way;
  for (int s = 0; s < devices * chunks; ++s) way.push_back(s % devices);
  Stages stages;
  add_chain(stages, "s", way, -1);
  return stages;
}

Stages wave_stages(int devices, int chunks) {
  std::vector<int> way;
  for (int s = 0; s < devices * chunks; ++s) {
    const int there = s % devices;
    way.push_back(s / devices % 2 == 0 ? there : devices - 1 - there);
  }
  Stages stages;
  add_chain(stages, "s", way, -1);
  return stages;
}

/// Stage s of the first half also feeds the stage that mirrors it, unless that is the next one anyway.
Stages skip_stages(int devices, int) {
  Stages stages;
  add_chain(stages, "s", all_devices(devices), -1);
  for (int s = 0; s + 1 < devices - 1 - s; ++s) stages[devices - 1 - s].inputs.push_back(s);
  return stages;
}

Stages chains_stages(int devices, int chunks) {
  Stages stages;
  for (int c = 0; c < chunks; ++c) {
    std::vector<int> way = all_devices(devices);
    const int shift = static_cast<int>(static_cast<long>(c) * devices / chunks);
    std::rotate(way.begin(), way.begin() + shift, way.end());
    std::string name = "chain";
    name.append(std::to_string(c)).append("s");
    add_chain(stages, name, way, -1);
  }
  return stages;
}

}  // namespace

const std::vector<NamedShape>& named_shapes() {
  static const std::vector<NamedShape> table = {
      {"v", "one stage per device; backwards return the same way", v_stages},
      {"x", "two chains in opposite directions (Chimera, DualPipe)", x_stages, true},
      {"m", "an embedding on all devices, then a chain", m_stages},
      {"nn", "encoder and decoder with half of the stages each, and an embedding on all devices before each",
       nn_stages},
      {"nn-first", "like nn, with the second embedding after the first stage", nn_first_stages},
      {"multimodal", "stages on all devices at the start and around the loss", multimodal_stages},
      {"k", "two branches that meet on all devices", k_stages, true, false, true},
      {"looped", "a chain that goes around the devices --chunks times", looped_stages, false, true},
      {"wave", "a chain that goes back and forth --chunks times (ZB-V, DualPipeV, Hanayo)", wave_stages,
       false, true},
      {"skip", "a chain whose first half also feeds the mirrored stages (U-Net)", skip_stages},
      {"chains", "--chunks independent chains, each starting at a later device", chains_stages, false, true},
  };
  return table;
}

const NamedShape* find_named_shape(const std::string& name) {
  const auto& all = named_shapes();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const NamedShape& s) { return s.name == name; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace ostinato
