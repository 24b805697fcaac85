// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ostinato search --steady-state`: the repeating part alone, with what is proved about it.

#include "bindings/cli/command.h"
#include "bindings/cli/interrupt.h"
#include "search/placement/placement.h"

namespace ostinato::cli {

/// Prints the best rate of any repetend that fits the memory, and the least memory at that period. Ends with
/// what it has after `seconds` (<= 0: no limit) or Ctrl-C. Returns the exit status, 5 where nothing was
/// found; throws InfeasibleError.
int report_steady_state(const Placement& placement, double seconds, bool strict, const InterruptGuard& guard,
                        bool json, Io& io);

}  // namespace ostinato::cli
