#pragma once
// The schedules behind named.h, by the structure that each of them needs. named.cpp checks that structure
// first. D is the number of devices of the chain, N the number of micro-batches, C the chunks per device.

#include "search/named/chain.h"
#include "search/orders.h"

namespace ostinato {

/// Every block for all micro-batches before the next block; forwards of all stages before any backward.
/// Any placement. Source: GPipe (Huang et al., NeurIPS 2019); with several looped chunks per device this is
/// the breadth-first schedule (Lamy-Poirier, MLSys 2023).
Orders gpipe_orders(const Placement& placement, int micro_batches);

/// Rank r runs min(N, D - r - 1) forwards, then forward and backward by turns. One chunk per device,
/// training. Makespan (N + D - 1)(F + B), min(N, D - r) micro-batches in flight. Source: PipeDream-Flush
/// (Narayanan et al., ICML 2021), DAPPLE (Fan et al., PPoPP 2021).
Orders one_f_one_b_orders(const Chain& chain, const Placement& placement, int micro_batches);

/// Micro-batches in groups of D, chunk after chunk within a group. Looped chunks, training.
/// Makespan (N C + D - 1)(f + b) for chunk times f, b and N a multiple of D; rank r holds at most
/// 2 (D - r - 1) + (C - 1) D + 1 chunks. Source: Megatron-LM (Narayanan et al., SC 2021), section 2.2.2.
Orders interleaved_orders(const Chain& chain, const Placement& placement, int micro_batches);

/// GPipe's order where the chunks are looped: all micro-batches of a chunk before the next chunk.
/// Makespan (N C + D - 1)(f + b) for N >= D, N C chunks in flight. Source: Breadth-First Pipeline Parallelism
/// (Lamy-Poirier, MLSys 2023).
Orders looped_bfs_orders(const Chain& chain, const Placement& placement, int micro_batches);

/// 1F1B whose weight halves wait, so that every rank holds what rank 0 holds under 1F1B: D micro-batches.
/// One chunk per device, split backward. Bubble (D - 1)(F + I - W) for F = I = W.
/// Source: Zero Bubble (Qi et al., ICLR 2024), section 2.1.
Orders zb_h1_orders(const Chain& chain, const Placement& placement, int micro_batches);

/// Twice as many forwards before the first backward: no bubble within a device's own time for F = I = W and
/// N >= 2 D - 1, for 2 D - 1 micro-batches in flight. Source: Zero Bubble, section 2.2.
Orders zb_h2_orders(const Chain& chain, const Placement& placement, int micro_batches);

/// The V of two chunks per device with a split backward: three points between memory and bubble. For F = I =
/// W and N >= 2 D they hold 2 D, about D and about 2 D / 3 chunks on the busiest rank (1F1B: the equivalent
/// of 2 D), each with the same period, the load of a device. Source: Pipeline Parallelism with Controllable
/// Memory (Qi et al., NeurIPS 2024).
Orders zb_v_orders(const Chain& chain, const Placement& placement, int micro_batches);
Orders v_half_orders(const Chain& chain, const Placement& placement, int micro_batches);
Orders v_min_orders(const Chain& chain, const Placement& placement, int micro_batches);

}  // namespace ostinato
