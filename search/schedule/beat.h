// SPDX-License-Identifier: Apache-2.0
#pragma once
// The beat of a pipeline: how far apart micro-batches start that pass each other without waiting.
//
//   const Nanoseconds beat = beat_of(in);       // 6 where forwards take 1, input halves 3, transfers 1
//
// Where a forward and a backward that go in opposite directions pass each other between two devices, each
// leaves its device before the other one needs it. That happens without a wait only where the starts of the
// two micro-batches are a multiple of one round trip apart, from one device to the next and back. What starts
// in between waits at the crossing, and holds memory for so much longer.

#include "search/placement/instance.h"

namespace ostinato {

/// The round trip that is most frequent between any two devices, the shortest of equally many; 0 where there
/// is none. In nanoseconds. O(edges log edges), and no more than 2^16 round trips are looked at.
Nanoseconds beat_of(const Instance& instance);

}  // namespace ostinato
