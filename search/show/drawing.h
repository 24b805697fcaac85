// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the drawings of a plan have in common, whatever they draw on.
//
//   // "v: 8 micro-batches on 4 devices, makespan 76 us (bound 70 us, says the plan)"
//   headline(plan, placement);
//   tick_length(135'000'000)       // 20 ms: the axis has a mark every 20 ms

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato {

/// What the plan is, how long it takes and what it says is proved: one line, safe for a terminal.
std::string headline(const Plan& plan, const Placement& placement);

/// Letters of a name: code points, each a column of a terminal.
std::size_t letters_of(std::string_view name);

/// At most `letters` (one or more) of the name, with an ellipsis for what is left out; safe for a terminal.
std::string shortened(std::string_view name, std::size_t letters);

/// Time that each device works, by device.
std::vector<Nanoseconds> busy_times(const Plan& plan, const Placement& placement);

/// The largest 1, 2 or 5 times a power of ten that is at most a fifth of the time; at least 1.
Nanoseconds tick_length(Nanoseconds makespan);

/// A time on an axis with marks `tick` apart: as format_time() writes it, or in a unit small enough to tell
/// it from its neighbours.
std::string tick_label(Nanoseconds time, Nanoseconds tick);

/// The place of each block's stage among the stages of its first device (0: the first chunk), by block index.
std::vector<int> chunks_of_blocks(const Placement& placement);

}  // namespace ostinato
