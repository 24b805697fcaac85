// SPDX-License-Identifier: Apache-2.0
#include "search/named/rank_order.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace ostinato {

void RankOrder::forward(int chunk, int micro_batch) {
  for (const StageBlocks& part : stages_[chunk]->parts) add(part.forward, micro_batch);
}

void RankOrder::backward(int chunk, int micro_batch) {
  for (const StageBlocks& part : stages_[chunk]->parts | std::views::reverse) add(part.backward, micro_batch);
}

void RankOrder::weight(int chunk, int micro_batch) {
  for (const StageBlocks& part : stages_[chunk]->parts | std::views::reverse) add(part.weight, micro_batch);
}

void RankOrder::whole_backward(int chunk, int micro_batch) {
  backward(chunk, micro_batch);
  weight(chunk, micro_batch);
}

void RankOrder::together(Pass forward, Pass backward) {
  const std::vector<StageBlocks>& ahead = stages_[forward.chunk]->parts;
  const std::size_t back = stages_[backward.chunk]->parts.size();
  for (std::size_t k = 0; k < std::max(ahead.size(), back); ++k) {
    if (k < ahead.size()) add(ahead[k].forward, forward.micro_batch);
    if (k < back) backward_part(backward.chunk, k, backward.micro_batch);
  }
}

void RankOrder::backward_part(int chunk, std::size_t k, int micro_batch) {
  const std::vector<StageBlocks>& parts = stages_[chunk]->parts;
  const StageBlocks& part = parts[parts.size() - 1 - k];
  add(part.backward, micro_batch);
  add(part.weight, micro_batch);
}

void RankOrder::add(int block, int micro_batch) {
  if (block >= 0 && micro_batch < micro_batches_) steps_.push_back({block, micro_batch});
}

ChainOrders::ChainOrders(const Chain& chain, const Placement& placement, int micro_batches)
    : placement_(placement) {
  std::vector<std::vector<const ChainPlace*>> stages(chain.devices.size(),
                                                     std::vector<const ChainPlace*>(chain.chunks));
  for (const ChainPlace& stage : chain.stages) stages[stage.rank][stage.chunk] = &stage;
  for (auto& by_chunk : stages) ranks_.emplace_back(std::move(by_chunk), micro_batches);
}

ChainOrders::ChainOrders(const TwoWay& chains, const Placement& placement, int micro_batches)
    : placement_(placement) {
  const int depth = chains.depth();
  for (int r = 0; r < depth; ++r) {
    std::vector<const ChainPlace*> by_chunk = {&chains.down.stages[r], &chains.up.stages[depth - 1 - r]};
    if (r >= depth / 2) std::swap(by_chunk[0], by_chunk[1]);
    ranks_.emplace_back(std::move(by_chunk), micro_batches);
  }
}

Orders ChainOrders::take() {
  Orders orders(placement_.devices.size());
  for (RankOrder& rank : ranks_)
    for (const Step& step : rank.take()) orders[placement_.blocks[step.block].devices[0]].push_back(step);
  return orders;
}

}  // namespace ostinato
