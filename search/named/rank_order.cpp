// SPDX-License-Identifier: Apache-2.0
#include "search/named/rank_order.h"

#include <utility>

namespace ostinato {

void RankOrder::whole_backward(int chunk, int micro_batch) {
  backward(chunk, micro_batch);
  weight(chunk, micro_batch);
}

void RankOrder::add(int block, int micro_batch) {
  if (block >= 0 && micro_batch < micro_batches_) steps_.push_back({block, micro_batch});
}

ChainOrders::ChainOrders(const Chain& chain, const Placement& placement, int micro_batches)
    : devices_(chain.devices), device_count_(placement.devices.size()) {
  std::vector<std::vector<const ChainPlace*>> stages(chain.devices.size(),
                                                     std::vector<const ChainPlace*>(chain.chunks));
  for (const ChainPlace& stage : chain.stages) stages[stage.rank][stage.chunk] = &stage;
  for (auto& by_chunk : stages) ranks_.emplace_back(std::move(by_chunk), micro_batches);
}

ChainOrders::ChainOrders(const TwoWay& chains, const Placement& placement, int micro_batches)
    : devices_(chains.down.devices), device_count_(placement.devices.size()) {
  const int depth = chains.depth();
  for (int r = 0; r < depth; ++r) {
    std::vector<const ChainPlace*> by_chunk = {&chains.down.stages[r], &chains.up.stages[depth - 1 - r]};
    if (r >= depth / 2) std::swap(by_chunk[0], by_chunk[1]);
    ranks_.emplace_back(std::move(by_chunk), micro_batches);
  }
}

Orders ChainOrders::take() {
  Orders orders(device_count_);
  for (std::size_t r = 0; r < ranks_.size(); ++r) orders[devices_[r]] = ranks_[r].take();
  return orders;
}

}  // namespace ostinato
