// SPDX-License-Identifier: Apache-2.0
#include "search/partition/chain_costs.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "search/partition/transit.h"

namespace ostinato::chain {

LayerSums::LayerSums(const std::vector<LayerCost>& layers, bool split_backward)
    : time_{0}, again_{0}, fixed_{0}, kept_{0}, sent_{0}, together_{0}, waiting_{0}, whole_{0} {
  std::vector<Bytes> alone, weight_workspace;
  Bytes forward = 0, forward_again = 0;
  for (const LayerCost& layer : layers) {
    const Nanoseconds backward =
        split_backward ? layer.backward_input.median + layer.backward_weight.median : layer.backward.median;
    time_.push_back(time_.back() + layer.forward.median + backward);
    again_.push_back(again_.back() + *layer.recompute);
    fixed_.push_back(fixed_.back() + layer.held());
    kept_.push_back(kept_.back() + layer.kept);
    input_.push_back(layer.input_bytes);
    sent_.push_back(held_when_sent(layer.sent));
    layers_.push_back({layer.index, layer.passed, layer.released});
    forward_peak_.push_back(kept_.back() + layer.forward_workspace);
    backward_peak_.push_back(kept_.back() + layer.backward_workspace);
    const auto other = [&](const LayerInput& part) { return part.layer != layer.index; };
    apart_ =
        apart_ && layer.passed.empty() && std::none_of(layer.released.begin(), layer.released.end(), other);
    together_.push_back(together_.back() + layer.step_together);
    alone.push_back(layer.step_alone);
    waiting_.push_back(waiting_.back() + layer.waiting);
    whole_.push_back(whole_.back() + (split_backward && layer.halves() ? 0 : 1));
    weight_workspace.push_back(layer.weight_workspace);
    const Bytes passed = of_run(layer.passed, 0);
    forward_.push_back(forward = std::max(forward, forward_peak_.back() + passed));
    forward_again = std::max(forward_again, layer.kept + layer.forward_workspace + passed);
    forward_again_.push_back(forward_again);
  }
  alone_ = largest_of(std::move(alone));
  weight_workspace_ = largest_of(std::move(weight_workspace));
  tabulate();
}

void LayerSums::tabulate() {
  std::vector<Bytes> peaks;
  if (apart_) {
    for (int l = 0; l < layers(); ++l) peaks.push_back(peak_of(l, l));
    peak_ = largest_of(std::move(peaks));
    return;
  }
  if (layers() > kMostTabulated) return;
  for (int first = 0; first < layers(); ++first) {
    peaks.clear();
    Bytes highest = 0;
    for (int l = first; l < layers(); ++l) {
      highest = std::max(highest, peak_of(l, first));
      peaks.push_back(highest);
    }
    peak_.push_back(peaks);
  }
}

Bytes LayerSums::of_run(const std::vector<LayerInput>& parts, int first) const {
  Bytes bytes = 0;
  for (const LayerInput& part : parts) bytes += part.layer >= layers_[first].index ? part.bytes : 0;
  return bytes;
}

Bytes LayerSums::second_half(int first, int end) const {
  if (whole_[end] > whole_[first]) return 0;
  return waiting_[end] - waiting_[first] + largest(weight_workspace_, first, end) - sent(end);
}

Bytes LayerSums::peak_of(int layer, int first) const {
  return std::max(forward_peak_[layer] + of_run(layers_[layer].passed, first),
                  backward_peak_[layer] - of_run(layers_[layer].released, first));
}

Bytes LayerSums::peak(int first, int end) const {
  if (apart_) return largest(peak_, first, end);
  if (!peak_.empty()) return peak_[first][end - 1 - first];
  Bytes highest = 0;
  for (int l = first; l < end; ++l) highest = std::max(highest, peak_of(l, first));
  return highest;
}

LayerSums::Largest LayerSums::largest_of(std::vector<Bytes> values) {
  Largest table;
  table.push_back(std::move(values));
  for (std::size_t width = 1; 2 * width <= table[0].size(); width *= 2) {
    const std::vector<Bytes>& half = table.back();
    std::vector<Bytes> whole;
    for (std::size_t i = 0; i + width < half.size(); ++i) whole.push_back(std::max(half[i], half[i + width]));
    table.push_back(std::move(whole));
  }
  return table;
}

Bytes LayerSums::largest(const Largest& table, int first, int end) {
  const int k = std::bit_width(static_cast<unsigned>(end - first)) - 1;
  return std::max(table[k][first], table[k][end - (1 << k)]);
}

bool ChainCosts::allows(int device, int first, int end) const {
  const auto is_spread = [&](int l) { return std::ranges::binary_search(rules_.spread, l); };
  if (!rules_.spread.empty() && std::none_of(layer_.begin() + first, layer_.begin() + end, is_spread))
    return false;
  return std::ranges::all_of(rules_.undivided, [&](const Undivided& one) {
    const bool has_some = one.run.first <= layer_[end - 1] && layer_[first] < one.run.end;
    const bool more_follow = end < layers() && layer_[end] < one.run.end;
    return !has_some || (!more_follow && (one.device < 0 || one.device == device));
  });
}

bool ChainCosts::may_end(int end) const {
  return std::ranges::none_of(rules_.undivided, [&](const Undivided& one) {
    return one.one_stage && one.run.first <= layer_[end - 1] && layer_[end] < one.run.end;
  });
}

bool ChainCosts::named(int device) const {
  return std::ranges::any_of(rules_.undivided, [&](const Undivided& one) { return one.device == device; });
}

bool ChainCosts::any_named() const {
  return std::ranges::any_of(rules_.undivided, [](const Undivided& one) { return one.device >= 0; });
}

ChainCosts::ChainCosts(const Model& model, const std::vector<int>& sharded, StageRules rules)
    : rules_(std::move(rules)), sent_by_{0} {
  for (int l = 0; l < model.graph.layers(); ++l) {
    if (!std::binary_search(sharded.begin(), sharded.end(), l)) {
      layer_.push_back(l);
      shards_before_.push_back(static_cast<int>(shards_.size()));
      bytes_at_.push_back(model.graph.bytes_across(l));
      sent_by_.push_back(model.graph.bytes_across(l + 1));
      continue;
    }
    if (shards_.empty() || shards_.back().layers.back() != l - 1) shards_.push_back({layers(), {}, {}});
    shards_.back().layers.push_back(l);
  }
  for (const std::vector<LayerCost>& all : model.on_kind) {
    std::vector<LayerCost> cut;
    for (const int l : layer_) {
      cut.push_back(all[l]);
      if (model.graph.readers(l).empty()) cut.back().sent = 0;
    }
    on_kind_.emplace_back(cut, model.split);
  }
  add_least();
  std::vector<int> devices(model.cluster.devices.size());
  std::iota(devices.begin(), devices.end(), 0);
  for (Shard& shard : shards_) {
    shard.cost = cost_of_stage(model, {.layers = shard.layers, .devices = devices});
    shard_time_ += shard.time();
    shard_fixed_ += shard.cost.fixed;
  }
}

/// Layer by layer: if kinds have their own profiles, one layer may be quickest here, the next there.
void ChainCosts::add_least() {
  const auto least = [&](auto of) {
    auto result = of(on_kind_.front());
    for (const LayerSums& on : on_kind_) result = std::min(result, of(on));
    return result;
  };
  for (int i = 0; i < layers(); ++i) {
    const auto once = [&](const LayerSums& on) { return on.time(i, i + 1); };
    const auto twice = [&](const LayerSums& on) { return on.time(i, i + 1) + on.again(i, i + 1); };
    least_.push_back(least_.back() + least(once));
    least_twice_.push_back(least_twice_.back() + least(twice));
    least_fixed_.push_back(least_fixed_.back() +
                           least([&](const LayerSums& on) { return on.fixed(i, i + 1); }));
  }
}

}  // namespace ostinato::chain
