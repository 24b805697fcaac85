// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "search/named/rank_order.h"
#include "search/named/schedules.h"

namespace ostinato {
namespace {

using Pass = RankOrder::Pass;

/// The k-th forward of every rank: groups of `depth` micro-batches, chunk after chunk within a group.
Pass forward_pass(int k, int depth, int chunks) {
  const int per_group = depth * chunks;
  return {k % per_group / depth, k / per_group * depth + k % depth};
}

Pass backward_pass(int k, int depth, int chunks) {
  const Pass pass = forward_pass(k, depth, chunks);
  return {chunks - 1 - pass.chunk, pass.micro_batch};
}

/// Writes one rank: `warm_up` forwards, then forward and backward by turns; the weight half of the k-th
/// backward after the (k + lag)-th.
void add_interleaved(RankOrder& rank, const Chain& chain, int total, int warm_up, int lag) {
  const auto pass = [&](int k) { return backward_pass(k, chain.depth(), chain.chunks); };
  for (int k = 0; k < total + warm_up; ++k) {
    if (k < total) {
      const Pass forward = forward_pass(k, chain.depth(), chain.chunks);
      rank.forward(forward.chunk, forward.micro_batch);
    }
    if (k < warm_up) continue;
    const int done = k - warm_up;
    rank.backward(pass(done).chunk, pass(done).micro_batch);
    if (done >= lag) rank.weight(pass(done - lag).chunk, pass(done - lag).micro_batch);
  }
  for (int k = std::max(0, total - lag); k < total; ++k) rank.weight(pass(k).chunk, pass(k).micro_batch);
}

/// Passes of one direction on a rank. Written for the next multiple of the depth; what does not exist is left
/// out (RankOrder).
int passes(const Chain& chain, int micro_batches) {
  return (micro_batches + chain.depth() - 1) / chain.depth() * chain.depth() * chain.chunks;
}

}  // namespace

Orders interleaved_orders(const Chain& chain, const Placement& placement, int micro_batches) {
  const int depth = chain.depth();
  const int total = passes(chain, micro_batches);
  ChainOrders orders(chain, placement, micro_batches);
  for (int r = 0; r < depth; ++r) {
    const int warm_up = std::min(total, 2 * (depth - 1 - r) + (chain.chunks - 1) * depth);
    add_interleaved(orders.rank(r), chain, total, warm_up, 0);
  }
  return orders.take();
}

Orders combined_1f1b_orders(const Chain& chain, const Placement& placement, int micro_batches) {
  const int depth = chain.depth(), chunks = chain.chunks;
  const int total = passes(chain, micro_batches);
  ChainOrders orders(chain, placement, micro_batches);
  for (int r = 0; r < depth; ++r) {
    RankOrder& rank = orders.rank(r);
    const int warm_up = std::min(total, 2 * (depth - 1 - r) + (chunks - 1) * depth + 1);
    for (int k = 0; k < warm_up; ++k) {
      const Pass forward = forward_pass(k, depth, chunks);
      rank.forward(forward.chunk, forward.micro_batch);
    }
    for (int k = 0; k < total; ++k)
      rank.together(forward_pass(k + warm_up, depth, chunks), backward_pass(k, depth, chunks));
  }
  return orders.take();
}

Orders interleaved_zb_orders(const Chain& chain, const Placement& placement, int micro_batches) {
  const int depth = chain.depth();
  const int total = passes(chain, micro_batches);
  ChainOrders orders(chain, placement, micro_batches);
  for (int r = 0; r < depth; ++r) {
    const int warm_up = std::min(total, depth - 1 - r + (chain.chunks - 1) * depth);
    add_interleaved(orders.rank(r), chain, total, warm_up, r);
  }
  return orders.take();
}

}  // namespace ostinato
