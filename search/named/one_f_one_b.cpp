// SPDX-License-Identifier: Apache-2.0
// 1F1B and its relatives with deferred weight halves.
//
// All of them are safe for any times and any number of micro-batches: rank r runs at least as many forwards
// before its first backward as rank r + 1, both run micro-batches in order, and a weight half, which nothing
// waits for, may stand anywhere after its input half.

#include <algorithm>

#include "search/named/rank_order.h"
#include "search/named/schedules.h"

namespace ostinato {
namespace {

/// `ahead` forwards, then forward and backward by turns, then the other backwards; each weight half `lag`
/// micro-batches after its input half as long as forwards remain, then one after each input half, then the
/// rest.
void add_one_f_one_b(RankOrder& rank, int micro_batches, int ahead, int lag) {
  ahead = std::min(ahead, micro_batches);
  for (int i = 0; i < ahead; ++i) rank.forward(0, i);
  int next_weight = 0;
  for (int i = 0; i < micro_batches; ++i) {
    if (ahead + i < micro_batches) rank.forward(0, ahead + i);
    rank.backward(0, i);
    if (i - next_weight >= lag) rank.weight(0, next_weight++);
  }
  while (next_weight < micro_batches) rank.weight(0, next_weight++);
}

}  // namespace

Orders one_f_one_b_orders(const Chain& chain, const Placement& placement, int micro_batches) {
  ChainOrders orders(chain, placement, micro_batches);
  for (int r = 0; r < chain.depth(); ++r)
    add_one_f_one_b(orders.rank(r), micro_batches, chain.depth() - 1 - r, 0);
  return orders.take();
}

Orders zb_h1_orders(const Chain& chain, const Placement& placement, int micro_batches) {
  ChainOrders orders(chain, placement, micro_batches);
  for (int r = 0; r < chain.depth(); ++r)
    add_one_f_one_b(orders.rank(r), micro_batches, chain.depth() - 1 - r, r);
  return orders.take();
}

Orders zb_h2_orders(const Chain& chain, const Placement& placement, int micro_batches) {
  ChainOrders orders(chain, placement, micro_batches);
  for (int r = 0; r < chain.depth(); ++r) {
    add_one_f_one_b(orders.rank(r), micro_batches, 2 * (chain.depth() - 1 - r), 2 * r);
  }
  return orders.take();
}

}  // namespace ostinato
