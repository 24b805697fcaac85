// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ostinato search --steady-state`, and ostinato.steady_state(): the repeating part alone, with a limit of
// time.
//
//   const Repeating found = repeating(placement, 10, [] { return false; });
//   if (found.none() || found.cut) ...                       // it ended before all was proved

#include <functional>

#include "search/files/json.h"
#include "search/repetend/repeating_part.h"

namespace ostinato::core {

struct Repeating {
  RepeatingPart part;
  bool cut = false;  ///< by the time or by `stopped`, before the least period and memory were proved

  bool none() const { return part.repetend.period == 0; }
};

/// The best rate of any repetend that fits the memory, and the least memory at that period. Ends with what it
/// has after `seconds` (<= 0: no limit), or where `stopped` says so. Throws what repeating_part() throws.
Repeating repeating(const Placement& placement, double seconds, const std::function<bool()>& stopped);

/// What `search --steady-state --json` prints beside its status.
Json repeating_json(const RepeatingPart& part);

}  // namespace ostinato::core
