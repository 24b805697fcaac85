#include "search/named/rank_order.h"

#include <utility>

namespace ostinato {

RankOrder::RankOrder(const Chain& chain, int rank, int micro_batches)
    : stages_(chain.chunks, nullptr), micro_batches_(micro_batches) {
  for (const ChainStage& stage : chain.stages) {
    if (stage.rank == rank) stages_[stage.chunk] = &stage;
  }
}

void RankOrder::whole_backward(int chunk, int micro_batch) {
  backward(chunk, micro_batch);
  weight(chunk, micro_batch);
}

void RankOrder::add(int block, int micro_batch) {
  if (block >= 0 && micro_batch < micro_batches_) steps_.push_back({block, micro_batch});
}

ChainOrders::ChainOrders(const Chain& chain, const Placement& placement, int micro_batches)
    : devices_(chain.devices), device_count_(placement.devices.size()) {
  for (int r = 0; r < chain.depth(); ++r) ranks_.emplace_back(chain, r, micro_batches);
}

Orders ChainOrders::take() {
  Orders orders(device_count_);
  for (std::size_t r = 0; r < ranks_.size(); ++r) orders[devices_[r]] = ranks_[r].take();
  return orders;
}

}  // namespace ostinato
