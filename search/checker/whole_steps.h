// SPDX-License-Identifier: Apache-2.0
#pragma once
// The idle time that whole steps force on a device before the first step of a block (docs/bounds.md, S6).
//
//   whole_steps_bound(graph, 24, false)   // no span of 24 micro-batches is shorter
//
// S1 to S5 count work as if it could be cut anywhere. A device that may not idle fills the wait for a block's
// first step with whole steps of other blocks. If these do not end just when that step is ready, the device
// or the step waits; the waits add up from device to device.

#include "search/checker/graph.h"

namespace ostinato::checker {

/// S6 in one direction of time; times must fit as for windows (Windows::affordable). O(blocks * (blocks +
/// edges) + devices * (blocks + edges) + log(span) * edges * pairs of their devices).
Wide whole_steps_bound(const Graph& graph, int n, bool backwards);

}  // namespace ostinato::checker
