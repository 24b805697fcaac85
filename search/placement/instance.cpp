// SPDX-License-Identifier: Apache-2.0
#include "search/placement/instance.h"

#include <algorithm>

namespace ostinato {

Instance::Instance(const Placement& placement, const std::vector<Nanoseconds>& longest)
    : placement_(&placement), topological_(topological_order(placement)) {
  const std::size_t blocks = placement.blocks.size();
  std::vector<std::vector<Edge>> inputs(blocks);
  std::vector<std::vector<Edge>> followers(blocks);
  std::vector<std::vector<int>> devices_of;
  std::vector<std::vector<int>> blocks_on(placement.devices.size());
  load_.assign(placement.devices.size(), 0);
  for (std::size_t i = 0; i < blocks; ++i) {
    const Block& block = placement.blocks[i];
    const int b = static_cast<int>(i);
    time_.push_back(block.time);
    memory_.push_back(block.memory);
    workspace_.push_back(block.time == 0 ? 0 : block.workspace);
    for (const Dependency& input : block.after) {
      Nanoseconds transfer = placement.transfer(input, b);
      if (!longest.empty()) transfer = std::min(transfer, longest[input.block]);
      inputs[i].push_back({input.block, transfer});
      followers[input.block].push_back({b, transfer});
    }
    devices_of.push_back(block.devices);
    for (const int d : block.devices) {
      blocks_on[d].push_back(b);
      load_[d] += block.time;
      heaviest_ = std::max(heaviest_, load_[d]);
    }
  }
  inputs_ = Lists(inputs);
  followers_ = Lists(followers);
  devices_of_ = Lists(devices_of);
  blocks_on_ = Lists(blocks_on);
  for (const Device& device : placement.devices) {
    room_.push_back(device.memory == kUnlimited ? kUnlimited : device.memory - device.static_memory);
    any_limited_ = any_limited_ || room_.back() != kUnlimited;
  }
  order_and_measure();
}

Instance Instance::reversed() const {
  Instance mirror = *this;
  mirror.mirrored_ = !mirrored_;
  std::swap(mirror.inputs_, mirror.followers_);
  std::reverse(mirror.topological_.begin(), mirror.topological_.end());
  for (Bytes& memory : mirror.memory_) memory = -memory;
  mirror.order_and_measure();
  return mirror;
}

void Instance::order_and_measure() {
  const std::size_t blocks = time_.size();
  rank_.resize(blocks);
  for (std::size_t i = 0; i < topological_.size(); ++i) rank_[topological_[i]] = static_cast<int>(i);
  head_.assign(blocks, 0);
  tail_.assign(blocks, 0);
  for (const int b : topological_) {
    for (const Edge& e : inputs_[b])
      head_[b] = std::max(head_[b], head_[e.block] + time_[e.block] + e.transfer);
  }
  for (auto b = topological_.rbegin(); b != topological_.rend(); ++b) {
    for (const Edge& e : followers_[*b])
      tail_[*b] = std::max(tail_[*b], e.transfer + time_[e.block] + tail_[e.block]);
  }
}

}  // namespace ostinato
