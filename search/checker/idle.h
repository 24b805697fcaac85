// SPDX-License-Identifier: Apache-2.0
#pragma once
// The time that a device surely idles while its memory fills up and while it empties (docs/bounds.md, M5).
//
//   const Windows windows(graph, 16);
//   idle_bound(graph, windows, 16, d)   // no schedule ends sooner, for what device d does in it
//
// M4 asks when each step may start at the earliest. It does not see that the steps of two chains on one
// device, each of which may start, do not fit its memory together; the most work that may have started by an
// instant, all in all, does.

#include "search/checker/windows.h"

namespace ostinato::checker {

/// Instants * k^2 that are looked at on each side of a device with k blocks, from the first instant on.
inline constexpr Wide kMostIdleWork = 1 << 16;

/// M5, with an origin S5: 0 where nothing is known of the memory of the device. `windows` are of n
/// micro-batches. O(n * k * log(n * k) + instants * k^2).
Wide idle_bound(const Graph& graph, const Windows& windows, int n, int device);

}  // namespace ostinato::checker
