#include "search/partition/chain_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace ostinato::chain {
namespace {

Nanoseconds lower_median(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Whether a link moves 1 MiB in a time more than a quarter away from what the default takes.
bool differs(const Link& link, const Link& usual) {
  constexpr Bytes probe = Bytes{1} << 20;
  const __int128 expected = usual.time(probe);
  const __int128 gap = link.time(probe) - expected;
  return 4 * (gap < 0 ? -gap : gap) > expected;
}

/// The default link is the median of the measured ones; a pair that differs much has its own.
void add_links(const Profile& profile, Placement& placement) {
  if (profile.transfers.empty()) return;
  std::vector<std::int64_t> latencies, bandwidths;
  for (const TransferCost& transfer : profile.transfers) {
    latencies.push_back(transfer.link.latency);
    bandwidths.push_back(transfer.link.bytes_per_second);
  }
  placement.link = {lower_median(std::move(latencies)), lower_median(std::move(bandwidths))};
  const int devices = static_cast<int>(placement.devices.size());
  for (const TransferCost& transfer : profile.transfers) {
    if (transfer.from < devices && transfer.to < devices && differs(transfer.link, placement.link)) {
      placement.links[{transfer.from, transfer.to}] = transfer.link;
    }
  }
}

/// Sums over the layers of one stage.
struct StageCost {
  Nanoseconds forward = 0, backward = 0, backward_input = 0, backward_weight = 0;
  Bytes kept = 0;  ///< with its input, which the backward needs as well
  Bytes forward_workspace = 0, backward_workspace = 0;
  Bytes fixed = 0;
};

StageCost sum_layers(const Profile& profile, int first, int end) {
  StageCost cost;
  cost.kept = profile.layers[first].input_bytes;
  for (int i = first; i < end; ++i) {
    const LayerCost& layer = profile.layers[i];
    cost.forward += layer.forward.median;
    cost.backward += layer.backward.median;
    cost.backward_input += layer.backward_input.median;
    cost.backward_weight += layer.backward_weight.median;
    cost.kept += layer.kept;
    cost.forward_workspace = std::max(cost.forward_workspace, layer.forward_workspace);
    cost.backward_workspace = std::max(cost.backward_workspace, layer.backward_workspace);
    cost.fixed += layer.parameters + layer.gradients + layer.optimizer_state;
  }
  return cost;
}

/// Adds blocks stage by stage: all forwards first, then all backwards from the last stage to the first.
class Builder {
 public:
  Builder(const Profile& profile, const PartitionOptions& options, const std::vector<int>& ends)
      : profile_(profile),
        split_(options.split_backward),
        ends_(ends),
        device_of_(devices_of_stages(options)) {
    add_devices(options);
    if (options.transfers) add_links(profile, placement_);
    for (int s = 0; s < stages(); ++s) add_forward(s);
    for (int s = stages() - 1; s >= 0; --s) add_backward(s);
  }

  Placement take() { return std::move(placement_); }

 private:
  int stages() const { return static_cast<int>(ends_.size()); }
  int first_layer(int s) const { return s == 0 ? 0 : ends_[s - 1]; }

  void add_devices(const PartitionOptions& options) {
    placement_.name = profile_.model;
    for (int d = 0; d < options.devices; ++d) {
      placement_.devices.push_back({fmt::format("d{}", d), profile_.device.kind, options.device_memory, 0});
    }
    for (int s = 0; s < stages(); ++s) {
      costs_.push_back(sum_layers(profile_, first_layer(s), ends_[s]));
      placement_.devices[device_of_[s]].static_memory += costs_[s].fixed;
      placement_.stages.push_back({fmt::format("s{}", s), first_layer(s), ends_[s]});
    }
  }

  Block& add(int s, Kind kind, const char* suffix, Nanoseconds time, Bytes workspace) {
    Block block;
    block.stage = placement_.stages[s].name;
    block.name = block.stage + suffix;
    block.kind = kind;
    block.devices = {device_of_[s]};
    block.time = time;
    block.workspace = workspace;
    return placement_.blocks.emplace_back(std::move(block));
  }

  /// Bytes that stage s hands to stage s + 1, and gets back as their gradient.
  Bytes output(int s) const { return profile_.layers[ends_[s] - 1].output_bytes; }

  void add_forward(int s) {
    Block& block = add(s, Kind::forward, ".F", costs_[s].forward, costs_[s].forward_workspace);
    block.memory = costs_[s].kept;
    if (s > 0) block.after.push_back({s - 1, output(s - 1)});
  }

  void add_backward(int s) {
    const StageCost& cost = costs_[s];
    Block& block = split_ ? add(s, Kind::backward_input, ".I", cost.backward_input, cost.backward_workspace)
                          : add(s, Kind::backward, ".B", cost.backward, cost.backward_workspace);
    block.after.push_back({s, 0});
    if (gradient_ >= 0) block.after.push_back({gradient_, output(s)});
    gradient_ = static_cast<int>(placement_.blocks.size()) - 1;
    if (!split_) {
      block.memory = -cost.kept;
      return;
    }
    Block& weight = add(s, Kind::backward_weight, ".W", cost.backward_weight, cost.backward_workspace);
    weight.after.push_back({gradient_, 0});
    weight.memory = -cost.kept;
  }

  const Profile& profile_;
  const bool split_;
  const std::vector<int>& ends_;
  const std::vector<int> device_of_;
  std::vector<StageCost> costs_;
  int gradient_ = -1;  ///< block that hands on the gradient of the later stage's input
  Placement placement_;
};

}  // namespace

std::vector<int> devices_of_stages(const PartitionOptions& options) {
  std::vector<int> device_of;
  for (int chunk = 0; chunk < options.chunks; ++chunk) {
    const bool back = options.layout == ChunkLayout::wave && chunk % 2 == 1;
    for (int i = 0; i < options.devices; ++i) device_of.push_back(back ? options.devices - 1 - i : i);
  }
  return device_of;
}

Placement build_placement(const Profile& profile, const PartitionOptions& options,
                          const std::vector<int>& ends) {
  return Builder(profile, options, ends).take();
}

}  // namespace ostinato::chain
