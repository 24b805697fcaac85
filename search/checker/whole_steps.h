// SPDX-License-Identifier: Apache-2.0
#pragma once
// The idle time that whole steps force on a device before the first step of a block (docs/bounds.md, S6).
//
//   whole_steps_bound(graph, 24, false)   // no span of 24 micro-batches is shorter
//
// S1 to S5 count work as if it could be cut anywhere. A device that may not idle waits for the first step of
// a block with whole steps of the others, and where these do not end when it comes, the device waits for the
// one or the step for the other; that adds up from device to device.

#include "search/checker/graph.h"

namespace ostinato::checker {

/// S6 in one direction of time; times must fit as those of windows do (Windows::affordable). O(blocks *
/// (blocks + edges) + devices * (blocks + edges) + log(span) * edges * pairs of their devices).
Wide whole_steps_bound(const Graph& graph, int n, bool backwards);

}  // namespace ostinato::checker
