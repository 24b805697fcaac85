// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bound for blocks that hold several devices (docs/bounds.md, M3): while a block on the way to a device's
// work runs, a block that shares a device with it cannot.

#include "search/checker/graph.h"

namespace ostinato::checker {

/// Sets of blocks that are tried, times numbers of devices a block holds, blocks + edges, and devices. Beyond
/// it the heads and tails that make the sets are thinned out.
inline constexpr Wide kMostSharedWork = 1 << 30;

/// The largest bound of M3 on the makespan of n micro-batches over the sets of blocks of a device; 0 where
/// all its blocks hold equally many devices: then M2 says as much. Sets that cannot give more than `known`
/// are left out. O(min(k^2 * widths * (blocks + edges), kMostSharedWork / devices)), k blocks on the device.
Wide shared_bound(const Graph& graph, int device, int n, Wide known);

}  // namespace ostinato::checker
