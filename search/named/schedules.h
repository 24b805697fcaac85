// SPDX-License-Identifier: Apache-2.0
#pragma once
// The schedules behind named.h, by the structure that each of them needs. named.cpp checks that structure
// first. An empty result says that the schedule finds no order. D is the number of devices of the chain, N
// the number of micro-batches, C the chunks per device.

#include "search/named/chain.h"
#include "search/plan/orders.h"

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

/// The same with one forward more before the first backward, so that every forward overlaps with the backward
/// that follows it: while one computes, the other is on its lane. Looped chunks in parts on lanes, or one a
/// device, training. Source: Megatron-Core's combined 1F1B (overlap_moe_expert_parallel_comm).
Orders combined_1f1b_orders(const Chain& chain, const Placement& placement, int micro_batches);

/// GPipe's order where the chunks are looped: all micro-batches of a chunk before the next chunk.
/// Makespan (N C + D - 1)(f + b) for N >= D, N C chunks in flight. Source: Breadth-First Pipeline Parallelism
/// (Lamy-Poirier, MLSys 2023).
Orders looped_bfs_orders(const Chain& chain, const Placement& placement, int micro_batches);

/// Looped chunks with a split backward: half the extra warm-up of interleaved 1F1B, and the weight half of
/// rank r's k-th backward after its (k + r)-th. For f = i = w and N a multiple of D: makespan 3 N C + D - 1.
/// Source: ZB-H1's order of a rank (Zero Bubble, section 2.1) over the passes of Megatron-LM's interleaving,
/// as torch.distributed.pipelining's ScheduleInterleavedZeroBubble combines them.
Orders interleaved_zb_orders(const Chain& chain, const Placement& placement, int micro_batches);

/// A free device runs the ready block that is furthest along its micro-batch, with at most as many
/// micro-batches in flight as devices: what 1F1B is on a chain, for blocks on several devices, branches and
/// several chains. Training, and no chain with one chunk per device. Source: the 1F1B+ baseline of Tessel
/// (arXiv 2311.15269), section 6.
Orders one_f_one_b_plus_orders(const Placement& placement, int micro_batches);

/// The same rule on a wave of C = 2 W chunks per device ("W waves"). Bubble ratio
/// (2 D - 2) / (3 D W + D - 1) for N = D and B = 2 F, to within a forward of one chunk. Source: Hanayo (Liu
/// et al., SC 2023, arXiv 2308.15762), section 3.
Orders hanayo_orders(const Chain& chain, const Placement& placement, int micro_batches);

/// 1F1B with delayed weight halves: every rank holds D micro-batches, as rank 0 does under 1F1B. One chunk
/// per device, split backward. Bubble (D - 1)(F + I - W) for F = I = W. Source: Zero Bubble (Qi et al., ICLR
/// 2024), section 2.1.
Orders zb_h1_orders(const Chain& chain, const Placement& placement, int micro_batches);

/// Twice as many forwards before the first backward: no bubble within a device's own time for F = I = W and
/// N >= 2 D - 1, for 2 D - 1 micro-batches in flight. Source: Zero Bubble, section 2.2.
Orders zb_h2_orders(const Chain& chain, const Placement& placement, int micro_batches);

/// The automatic schedule (zero_bubble_auto.cpp) with room for D micro-batches a rank, for 2 D, and for what
/// the memory of the placement holds. Bubble (D - 1) F with room for D and F = I = W; none within a device
/// with room for 2 D and N >= 2 D. Empty where the memory leads into a dead end. Source: Zero Bubble,
/// sections 3.1 and 4.3 (ZB-1p, ZB-2p).
Orders zb_1p_orders(const Chain& chain, const Placement& placement, int micro_batches);
Orders zb_2p_orders(const Chain& chain, const Placement& placement, int micro_batches);
Orders zb_auto_orders(const Chain& chain, const Placement& placement, int micro_batches);

/// The V of two chunks per device with a split backward, in the memory of 1F1B: 2 D chunks. Makespan
/// 6 N + D - 1 for F = I = W and N >= 2 D. Source: Zero Bubble, section 6 (ZB-V).
Orders zb_v_orders(const Chain& chain, const Placement& placement, int micro_batches);

/// The same V in about half and a third of that memory: about D and about 2 D / 3 chunks on the busiest rank
/// for F = I = W and N >= 2 D, each with the same period, the load of a device. Source: Pipeline Parallelism
/// with Controllable Memory (Qi et al., NeurIPS 2024).
Orders v_half_orders(const Chain& chain, const Placement& placement, int micro_batches);
Orders v_min_orders(const Chain& chain, const Placement& placement, int micro_batches);

/// Two chains in opposite directions; a micro-batch of the placement is one of each. D / 2 of them make a
/// unit, units follow each other without a gap. For F = B and N a multiple of D / 2: makespan 4 N F + (D - 2)
/// F (bubble ratio (D - 2) / (2 N' + D - 2) for the N' = 2 N micro-batches of the paper), D / 2 + 1 to D
/// activations on a device for one unit. Source: Chimera (Li, Hoefler, SC 2021, arXiv 2107.06925), section
/// 3.1 and table 2; units concatenated as in section 3.5.
Orders chimera_orders(const TwoWay& chains, const Placement& placement, int micro_batches);

/// Two chains in opposite directions, a forward of one paired with a backward of the other. Bubble
/// (D / 2 - 1)(F&B + B - 3 W) for N >= D of each direction, B = I + W the whole backward and F&B the pair
/// (F + B without lanes; with lanes they overlap as published); D + 1 activations. Source: DualPipe
/// (DeepSeek-V3 technical report, arXiv 2412.19437, section 3.2.1, figure 5 and table 2).
Orders dual_pipe_orders(const TwoWay& chains, const Placement& placement, int micro_batches);

/// DualPipe cut in half: the V of two chunks per device runs what one half of DualPipe's 2 D ranks runs.
/// Bubble (D - 1)(F&B + B - 3 W) for N >= 2 D, 2 D + 1 chunks in flight. Source: the DualPipe repository's
/// comparison table; Qi et al., "DualPipe could be better without the Dual" (2025).
Orders dual_pipe_v_orders(const Chain& chain, const Placement& placement, int micro_batches);

}  // namespace ostinato
