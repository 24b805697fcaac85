#include <algorithm>

#include "search/named/rank_order.h"
#include "search/named/schedules.h"

namespace ostinato {
namespace {

struct Pass {
  int chunk = 0;
  int micro_batch = 0;
};

/// The k-th forward of every rank: groups of `depth` micro-batches, chunk after chunk within a group.
Pass forward_pass(int k, int depth, int chunks) {
  const int per_group = depth * chunks;
  return {k % per_group / depth, k / per_group * depth + k % depth};
}

Pass backward_pass(int k, int depth, int chunks) {
  const Pass pass = forward_pass(k, depth, chunks);
  return {chunks - 1 - pass.chunk, pass.micro_batch};
}

}  // namespace

Orders interleaved_orders(const Chain& chain, const Placement& placement, int micro_batches) {
  const int depth = chain.depth();
  // Written for the next multiple of the depth; what does not exist is left out (RankOrder).
  const int total = (micro_batches + depth - 1) / depth * depth * chain.chunks;
  ChainOrders orders(chain, placement, micro_batches);
  for (int r = 0; r < depth; ++r) {
    RankOrder& rank = orders.rank(r);
    const int warm_up = std::min(total, 2 * (depth - 1 - r) + (chain.chunks - 1) * depth);
    const auto forward = [&](int k) {
      const Pass pass = forward_pass(k, depth, chain.chunks);
      rank.forward(pass.chunk, pass.micro_batch);
    };
    for (int k = 0; k < warm_up; ++k) forward(k);
    for (int k = 0; k < total; ++k) {
      if (warm_up + k < total) forward(warm_up + k);
      const Pass pass = backward_pass(k, depth, chain.chunks);
      rank.whole_backward(pass.chunk, pass.micro_batch);
    }
  }
  return orders.take();
}

}  // namespace ostinato
