// SPDX-License-Identifier: Apache-2.0
#include "search/partition/any_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "search/files/counted.h"
#include "search/partition/packing.h"
#include "search/partition/stage_cost.h"
#include "search/partition/transit.h"
#include "search/placement/quantity.h"

namespace ostinato {
namespace {

using chain::Model;
using chain::StageCost;

/// Layers that are put on a device, in all; steps of the packing that proves that nothing fits.
constexpr long kMostPut = 100'000, kPackingWork = 1'000'000;

class Packer {
 public:
  Packer(const Model& model, bool recompute) : model_(model), used_(model.devices()) {
    const int layers = static_cast<int>(model.profile.layers.size());
    for (std::size_t kind = 0; kind < model.on_kind.size(); ++kind) {
      const auto same = [&](int d) { return model.kind_of(d) == static_cast<int>(kind); };
      int device = 0;  // any of the kind
      while (device < model.devices() && !same(device)) ++device;
      std::vector<StageCost>& costs = costs_.emplace_back(layers);
      for (int l = 0; l < layers && device < model.devices(); ++l)
        costs[l] = cost_of_stage(model, {.layers = {l}, .devices = {device}, .recompute = recompute});
    }
    for (int d = 0; d < model.devices(); ++d) used_[d].kind = model.kind_of(d);
    order_.resize(layers);
    std::iota(order_.begin(), order_.end(), 0);
    const auto size = [&](int l) {
      const StageCost& cost = costs_[model.kind_of(0)][l];
      return cost.fixed + cost.in_flight(recompute);
    };
    std::ranges::stable_sort(order_, std::greater<>(), size);
    device_of_.assign(layers, -1);
    recompute_ = recompute;
  }

  bool find(std::size_t next = 0) {
    if (next == order_.size()) return true;
    const auto empty = std::ranges::count(used_, 0, &Used::layers);
    if (static_cast<std::size_t>(empty) > order_.size() - next) return false;
    std::set<Used> tried;  // devices that are alike are one choice
    for (int d = 0; d < model_.devices() && left_ > 0; ++d) {
      const Used before = used_[d];
      if (!tried.insert(before).second) continue;
      --left_;
      put(used_[d], costs_[before.kind][order_[next]]);
      device_of_[order_[next]] = d;
      if (fits(used_[d]) && find(next + 1)) return true;
      used_[d] = before;
    }
    return false;
  }

  const std::vector<int>& device_of() const { return device_of_; }

 private:
  struct Used {
    int kind = 0, layers = 0;
    Bytes held = 0, workspace = 0, messages = 0, step_together = 0, step_alone = 0;
    friend auto operator<=>(const Used&, const Used&) = default;
  };

  void put(Used& used, const StageCost& cost) const {
    ++used.layers;
    used.held += cost.fixed + cost.in_flight(recompute_);
    used.workspace = std::max(used.workspace, cost.workspace());
    used.messages = std::max(used.messages, messages_of(model_.rank, cost.received, cost.handed_on));
    used.step_together += cost.step_together;
    used.step_alone = std::max(used.step_alone, cost.step_alone);
  }

  bool fits(const Used& used) const {
    const Bytes memory = model_.cluster.kinds[used.kind].memory;
    const Bytes beside = std::max(used.workspace, model_.end_of_step(used.step_together, used.step_alone));
    return memory == kUnlimited || used.held + used.messages + model_.rank.held + beside <= memory;
  }

  const Model& model_;
  bool recompute_ = false;
  std::vector<std::vector<StageCost>> costs_;  ///< by kind and layer: of a stage of that layer alone
  std::vector<int> order_;                     ///< layers, the largest first
  std::vector<Used> used_;                     ///< by device
  std::vector<int> device_of_;                 ///< by layer
  long left_ = kMostPut;
};

/// What any stage with this layer holds while its forward runs, whether it recomputes or not. One that takes
/// no time may give it back at once. Of an inference only what was measured without a graph is certain.
Bytes least_of(const LayerCost& layer, bool inference) {
  if (layer.forward.median == 0) return layer.held();
  return layer.held() +
         (inference ? layer.inference_workspace.value_or(0) : layer.kept + layer.forward_workspace);
}

template <class Value>
Bytes least_over_kinds(const Model& model, int layer, Value value) {
  Bytes least = std::numeric_limits<Bytes>::max();
  for (const std::vector<LayerCost>& layers : model.on_kind) least = std::min(least, value(layers[layer]));
  return least;
}

/// A layer that may not be sharded and fits no device, or "".
std::string why_one_does_not_fit(const Model& model, const std::vector<int>& shardable, Bytes most) {
  for (int l = 0; l < static_cast<int>(model.profile.layers.size()); ++l) {
    const auto least = [&](const LayerCost& layer) { return least_of(layer, model.inference); };
    const Bytes needed = least_over_kinds(model, l, least) + model.rank.held;
    if (std::ranges::count(shardable, l) > 0 || needed <= most) continue;
    const auto [wanted, there] = format_apart(needed, most);
    return fmt::format("layer {} needs at least {}, however it is placed, but a device has only {}",
                       model.profile.layers[l].name, wanted, there);
  }
  return "";
}

}  // namespace

std::optional<std::vector<Stage>> stages_that_fit(const Profile& profile, const PartitionOptions& options) {
  const Model model(profile, options);
  const bool recompute = options.recompute != Recompute::never;
  Packer packer(model, recompute);
  if (!packer.find()) return std::nullopt;
  std::vector<Stage> stages;
  for (int l = 0; l < static_cast<int>(packer.device_of().size()); ++l) {
    const int device = packer.device_of()[l];
    if (stages.empty() || stages.back().devices.front() != device)
      stages.push_back({.devices = {device}, .recompute = recompute});
    stages.back().layers.push_back(l);
  }
  return stages;
}

std::string why_nothing_fits(const Profile& profile, const JointOptions& options) {
  const Model model(profile, options.partition);
  std::vector<Bytes> rooms;
  Bytes most = 0;
  for (int d = 0; d < model.devices(); ++d) {
    if (model.memory_of(d) == kUnlimited) return "";
    most = std::max(most, model.memory_of(d));
    rooms.push_back(std::max<Bytes>(0, model.memory_of(d) - model.rank.held));
  }
  if (std::string reason = why_one_does_not_fit(model, options.shardable, most); !reason.empty())
    return reason;
  std::vector<Bytes> whole;  // what is not divided
  Bytes all = 0;
  for (int l = 0; l < static_cast<int>(profile.layers.size()); ++l) {
    const Bytes fixed = least_over_kinds(model, l, [](const LayerCost& cost) { return cost.least_held(); });
    all += fixed;
    if (std::ranges::count(options.shardable, l) == 0) whole.push_back(fixed);
  }
  for (Bytes& room : rooms) room = std::min(room, all);
  std::ranges::sort(rooms, std::greater<>());
  const __int128 together = std::accumulate(rooms.begin(), rooms.end(), __int128{0});
  long work = kPackingWork;
  if (all <= together && partition::Packing(whole).fits(rooms, work) != partition::Fits::no) return "";
  return fmt::format("{} take {}, which no division of the layers fits into {} with at most {}",
                     model.inference ? "parameters" : "parameters, gradients and optimizer state",
                     format_memory(all), counted(model.devices(), "device"), format_memory(most));
}

}  // namespace ostinato
