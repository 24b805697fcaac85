// SPDX-License-Identifier: Apache-2.0
#pragma once
// The time that a device surely idles while its memory fills up and while it empties (docs/bounds.md, M5).

#include "search/bounds/windows.h"

namespace ostinato {

/// M5, with an origin S5: no schedule ends sooner, for what device d does in it; 0 where nothing is known of
/// its memory. `mirror` is instance.reversed(). O(n * k * log(n * k) + instants * k^2), k blocks on d, at
/// most 2^16 / k^2 instants on each side.
Nanoseconds idle_bound(const Instance& instance, const Instance& mirror, const Matchings& held,
                       const Windows& windows, int d);

}  // namespace ostinato
