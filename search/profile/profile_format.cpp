// SPDX-License-Identifier: Apache-2.0
// Writing ostinato-profile/1: one line a row, so that two profiles can be compared line by line.

#include <fmt/format.h>

#include "search/files/json.h"
#include "search/profile/profile_json.h"
#include "search/profile/profile_noise.h"

namespace ostinato {
namespace {

Json json(const Spread& spread) {
  return {{"median", spread.median}, {"low", spread.low}, {"high", spread.high}, {"repeats", spread.repeats}};
}

Json json(const std::vector<LayerInput>& inputs) {
  Json list = Json::array();
  for (const LayerInput& input : inputs) list.push_back({{"layer", input.layer}, {"bytes", input.bytes}});
  return list;
}

Json json(const LayerCost& layer) {
  Json row = {{"index", layer.index},
              {"name", layer.name},
              {"same_as", layer.same_as},
              {"forward", json(layer.forward)},
              {"backward", json(layer.backward)},
              {"backward_input", json(layer.backward_input)},
              {"backward_weight", json(layer.backward_weight)},
              {"kept", layer.kept},
              {"forward_workspace", layer.forward_workspace},
              {"backward_workspace", layer.backward_workspace},
              {"parameters", layer.parameters},
              {"gradients", layer.gradients},
              {"optimizer_state", layer.optimizer_state},
              {"input_bytes", layer.input_bytes},
              {"output_bytes", layer.output_bytes}};
  if (!layer.passed.empty()) row["passed"] = json(layer.passed);
  if (!layer.released.empty()) row["released"] = json(layer.released);
  if (layer.after) row["after"] = json(*layer.after);
  if (layer.recompute) row["recompute"] = *layer.recompute;
  if (layer.inference_workspace) row["inference_workspace"] = *layer.inference_workspace;
  if (layer.reduced) row["reduced"] = *layer.reduced;
  for (const auto& [key, amount] : {std::pair{"tied", layer.tied},
                                    {"step_together", layer.step_together},
                                    {"step_alone", layer.step_alone},
                                    {"step_time", layer.step_time},
                                    {"waiting", layer.waiting},
                                    {"weight_workspace", layer.weight_workspace},
                                    {"labels", layer.labels},
                                    {"sent", layer.sent}})
    if (amount > 0) row[key] = amount;
  if (layer.shardable) row["shardable"] = true;
  if (!layer.lane.empty()) row["lane"] = layer.lane;
  if (!layer.digest.empty()) row["digest"] = layer.digest;
  return row;
}

Json json(const OperatorCost& row) {
  Json object = {{"layer", row.layer},
                 {"name", row.name},
                 {"phase", row.phase},
                 {"calls", row.calls},
                 {"self_time", json(row.self_time)},
                 {"allocated", row.allocated}};
  if (row.flops) object["flops"] = *row.flops;
  return object;
}

Json json(const TransferCost& row) {
  Json object = {{"from", row.from},
                 {"to", row.to},
                 {"latency", row.link.latency},
                 {"bytes_per_second", row.link.bytes_per_second},
                 {"residual", row.residual}};
  if (!row.backend.empty()) object["backend"] = row.backend;
  return object;
}

Json json(const Completeness& completeness) {
  return {{"complete", completeness.complete},
          {"expected", completeness.expected},
          {"seen", completeness.seen},
          {"dropped", completeness.dropped},
          {"out_of_range", completeness.out_of_range},
          {"reason", completeness.reason}};
}

Json json(const RankCost& rank) {
  Json object = {{"held", rank.held}, {"step", rank.step}, {"buffers", rank.buffers}};
  for (const auto& [key, value] : {std::pair{"forward", rank.forward},
                                   {"backward", rank.backward},
                                   {"read", rank.read},
                                   {"step_time", rank.step_time},
                                   {"computing", rank.computing},
                                   {"average", rank.average}})
    if (value > 0) object[key] = value;
  return object;
}

Json json(const Restriction& row) {
  Json object = {{"rule", std::string(to_string(row.rule))}};
  if (row.rule == Rule::most_chunks) object["chunks"] = row.chunks;
  if (!row.layers.empty()) object["layers"] = row.layers;
  if (row.device >= 0) object["device"] = row.device;
  object["reason"] = row.reason;
  return object;
}

Json json(const OwnRun& run) {
  Json object = {{"layers", run.layers}, {"micro_batches", run.micro_batches}};
  if (run.step.repeats > 0) object["step"] = json(run.step);
  return object;
}

Json json(const SizeCost& row) {
  return {{"size", row.size}, {"forward", row.forward}, {"backward", row.backward}};
}

void add(std::string& text, const char* key, const Json& value) {
  text += fmt::format("  \"{}\": {},\n", key, value.text());
}

template <typename Row>
void add_rows(std::string& text, const char* key, const std::vector<Row>& rows) {
  text += fmt::format("  \"{}\": [", key);
  const char* separator = "\n    ";
  for (const Row& row : rows) {
    text += separator + json(row).text();
    separator = ",\n    ";
  }
  text += rows.empty() ? "]" : "\n  ]";
}

}  // namespace

std::string format_profile(const Profile& profile) {
  std::string text = "{\n";
  add(text, "format", "ostinato-profile/1");
  add(text, "model", {{"name", profile.model}, {"sha256", profile.model_sha256}});
  const auto& device = profile.device;
  add(text, "device",
      {{"name", device.name},
       {"kind", device.kind},
       {"driver", device.driver},
       {"torch", device.torch},
       {"cuda", device.cuda},
       {"clocks", device.clocks}});
  add(text, "timer", profile.timer);
  if (!profile.timer_note.empty()) add(text, "timer_note", profile.timer_note);
  add(text, "warm_up", profile.warm_up);
  add(text, "repeats", profile.repeats);
  add(text, "micro_batch_size", profile.micro_batch_size);
  if (profile.slices > 1) add(text, "slices", profile.slices);
  if (profile.tokens > 0) add(text, "tokens", profile.tokens);
  add(text, "completeness", json(profile.completeness));
  if (const std::string noise = noise_of(profile); !noise.empty()) add(text, "noise", noise);
  if (profile.rank != RankCost{}) add(text, "rank", json(profile.rank));
  if (const auto& [ranks, step] = profile.zero; ranks > 0)
    add(text, "zero", {{"ranks", ranks}, {"step", step}});
  if (!profile.restrictions.empty()) {
    add_rows(text, "restrictions", profile.restrictions);
    text += ",\n";
  }
  if (!profile.run.layers.empty()) add(text, "run", json(profile.run));
  add_rows(text, "layers", profile.layers);
  text += ",\n";
  if (!profile.sizes.empty()) {
    add_rows(text, "sizes", profile.sizes);
    text += ",\n";
  }
  add_rows(text, "operators", profile.operators);
  text += ",\n";
  add_rows(text, "transfers", profile.transfers);
  return text + "\n}\n";
}

}  // namespace ostinato
