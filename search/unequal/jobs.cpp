// SPDX-License-Identifier: Apache-2.0
#include "search/unequal/jobs.h"

#include <algorithm>

namespace ostinato::unequal {
namespace {

/// Backwards, and forwards that no other forward takes from: their losses.
std::vector<char> adding(const Placement& placement) {
  std::vector<char> adds(placement.blocks.size(), 1);
  for (const Block& block : placement.blocks) {
    if (block.kind != Kind::forward) continue;
    for (const Dependency& input : block.after)
      if (placement.blocks[static_cast<std::size_t>(input.block)].kind == Kind::forward)
        adds[static_cast<std::size_t>(input.block)] = 0;
  }
  return adds;
}

}  // namespace

Jobs::Jobs(const Placement& placement, const std::vector<MicroBatch>& sizes, bool keep_order)
    : blocks_(static_cast<int>(placement.blocks.size())),
      micro_batches_(static_cast<int>(sizes.size())),
      topological_(topological_order(placement)),
      in_order_(keep_order ? adding(placement) : std::vector<char>(placement.blocks.size(), 0)) {
  for (const MicroBatch& one : sizes) {
    time_.insert(time_.end(), one.times.begin(), one.times.end());
    memory_.insert(memory_.end(), one.memory.begin(), one.memory.end());
    workspace_.insert(workspace_.end(), one.workspace.begin(), one.workspace.end());
  }
  for (int s = 0; s < steps(); ++s)
    if (time(s) == 0) workspace_[s] = 0;
  for (const Device& device : placement.devices)
    room_.push_back(device.memory == kUnlimited ? kUnlimited : device.memory - device.static_memory);
  std::vector<std::vector<int>> of, on(placement.devices.size());
  for (int b = 0; b < blocks_; ++b) {
    of.push_back(placement.blocks[b].devices);
    for (const int d : of.back()) on[d].push_back(b);
  }
  devices_of_ = Lists<int>(of);
  blocks_on_ = Lists<int>(on);
  connect(placement, sizes);
  measure();
}

void Jobs::connect(const Placement& placement, const std::vector<MicroBatch>& sizes) {
  std::vector<std::vector<Input>> inputs(time_.size()), followers(time_.size());
  for (int i = 0; i < micro_batches_; ++i) {
    std::size_t edge = 0;
    for (int b = 0; b < blocks_; ++b) {
      for (Dependency input : placement.blocks[b].after) {
        input.bytes = sizes[i].bytes[edge++];
        const Nanoseconds transfer = placement.transfer(input, b);
        const int from = i * blocks_ + input.block, to = i * blocks_ + b;
        inputs[to].push_back({from, transfer});
        followers[from].push_back({to, transfer});
      }
    }
  }
  inputs_ = Lists<Input>(inputs);
  followers_ = Lists<Input>(followers);
  const std::size_t n = blocks_;
  reaches_.assign(n * n, 0);
  for (const int b : topological_) {
    const std::size_t to = b;
    reaches_[to * n + to] = 1;
    for (const Dependency& input : placement.blocks[to].after)
      for (std::size_t a = 0; a < n; ++a)
        if (reaches_[a * n + input.block] != 0) reaches_[a * n + to] = 1;
  }
}

void Jobs::measure() {
  head_.assign(time_.size(), 0);
  tail_.assign(time_.size(), 0);
  for (int i = 0; i < micro_batches_; ++i) {
    for (const int b : topological_) {
      const int s = i * blocks_ + b;
      for (const Input& in : inputs(s))
        head_[s] = std::max(head(s), head(in.step) + time(in.step) + in.transfer);
    }
    for (auto b = topological_.rbegin(); b != topological_.rend(); ++b) {
      const int s = i * blocks_ + *b;
      for (const Input& out : followers(s))
        tail_[s] = std::max(tail(s), tail(out.step) + time(out.step) + out.transfer);
    }
  }
}

}  // namespace ostinato::unequal
