// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a layer costs where nothing is trained: its forward, and its parameters.
//
//   PartitionOptions options{.devices = 4, .inference = true};
//   Placement placement = partition_chain(profile, options);      // blocks "s0.F", "s1.F", ... alone
//
// Every partition of a profile then counts so:
//
//   static memory of a device    parameters of its layers, and the messages that wait there: of each of its
//                                stages one input that has come ahead of need, and kSendsAhead outputs on
//                                their way
//   while a forward runs         what its largest layer has at its peak, and the inputs of layer and stage
//
// Nothing is left when a forward ends, so how many requests are in flight costs no memory beside those
// messages: the executor holds a sender back that is further ahead than that (search/plan/sends_ahead.h).
//
// Where the profile has no `inference_workspace`, the peak is from above: it was measured in a forward that
// kept its graph, and one without frees earlier.

#include "search/profile/profile.h"

namespace ostinato {

/// The layer without its backward, and without what is held for one: gradients, optimizer state, activations.
LayerCost forward_only(LayerCost layer);

}  // namespace ostinato
