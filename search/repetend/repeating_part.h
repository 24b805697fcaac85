// SPDX-License-Identifier: Apache-2.0
#pragma once
// The repeating part of a placement alone (`ostinato search --steady-state`): what goes on for ever.
//
//   const RepeatingPart part = repeating_part(placement, {});
//   part.repetend.period, part.bound, part.held[0]

#include <vector>

#include "search/placement/placement.h"
#include "search/repetend/repetend.h"

namespace ostinato {

struct RepeatingPart {
  Repetend repetend;        ///< at the best rate found, in the least memory found; period 0: none
  Nanoseconds bound = 0;    ///< of its period (P1 to P3)
  std::vector<Bytes> held;  ///< per device, static memory included; only where nothing is left behind
  /// Per device what a micro-batch leaves behind when it is done, or below 0 what it gives back and never
  /// took: where that is not 0, no fixed amount of memory is the repeating part's.
  std::vector<Bytes> left_behind;
  bool steady = true;  ///< left_behind is 0 everywhere
};

/// Throws InfeasibleError (with the proof) where nothing fits, or nothing fits for ever; InputError where
/// more is held than is planned (check_totals).
RepeatingPart repeating_part(const Placement& placement, const RepetendOptions& options);

}  // namespace ostinato
