// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a device runs before the first step of a block are whole steps (docs/bounds.md, S6): so much idle time
// as a span leaves may not be enough to wait for other devices.
//
//   whole_steps_bound(in, 24, known, 1000)   // no span of 24 micro-batches is shorter, on the way to 1000

#include "search/placement/instance.h"

namespace ostinato {

/// S6 forwards in time (of instance.reversed(): backwards), from `at_least` to `enough`. Only where windows
/// are affordable (windows.h). O(blocks * (blocks + edges) + log(span) * devices a block * edges).
Nanoseconds whole_steps_bound(const Instance& instance, int n, Nanoseconds at_least, Nanoseconds enough);

}  // namespace ostinato
