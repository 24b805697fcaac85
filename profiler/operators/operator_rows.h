// SPDX-License-Identifier: Apache-2.0
#pragma once
// From events to the rows of a profile: per layer, direction and operator.

#include <cstdint>
#include <vector>

#include "profiler/operators/operator_recorder.h"
#include "search/profile/profile.h"

namespace ostinato {

/// One row per (layer, phase, name) in that order. Each figure is the median over the passes of that layer
/// and phase; a pass in which the operator did not run counts as 0. Events outside all passes are left out.
/// Passes of another phase than forward and backward have no rows.
std::vector<OperatorCost> operator_rows(const OperatorRecorder& recorder);

/// The same with the device's times, as a DeviceTimer that the recorder was started with has measured them.
/// An operator that launched nothing took the device no time.
std::vector<OperatorCost> operator_rows(const OperatorRecorder& recorder, const cupti::DeviceTimes& times);

/// For each event of a backward node that a forward operator made: the index of the forward event, found by
/// sequence number and forward thread (the innermost of the operators that share it); else -1. O(events log
/// events).
std::vector<int> forward_events(const std::vector<OperatorEvent>& events);

/// Backward nodes of passes whose forward event was recorded for another layer. More than 0: passes were
/// mixed up.
std::int64_t out_of_range(const OperatorRecorder& recorder);

}  // namespace ostinato
