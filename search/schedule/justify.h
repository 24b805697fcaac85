// SPDX-License-Identifier: Apache-2.0
#pragma once
// Justification: a schedule is made again, each step as soon as it can run, and where several can, the one
// that the schedule started first. Done backwards in time and then forwards it closes the gaps at both ends
// of a repetition: time that a device leaves free while the pipeline fills goes to later steps.
//
// Memory cannot lead into a deadlock: a step overtakes others only if these still fit after it, in the
// schedule's order. Source: Valls, Ballestin, Quintanilla (2005), "Justification and RCPSP: a technique that
// pays"; Li, Willis (1992); here with memory that is taken and given back.
//
//   const Justified better = justify(in, mirror, 128, sequence, {});
//   best.offer(better.sequence, "...");

#include <cstdint>
#include <functional>
#include <vector>

#include "search/placement/instance.h"
#include "search/plan/plan.h"

namespace ostinato {

struct JustifyOptions {
  int passes = 6;  ///< alternately forwards and backwards in time; fewer where two in a row gain nothing
  /// A step overtakes others only if it ends before the first of them started in the schedule.
  bool patient = false;
  /// Per device, beyond static memory; empty: as the placement has it. The schedule must fit it.
  std::vector<Bytes> room = {};
  std::function<bool()> stop = {};  ///< the best so far is returned
};

struct Justified {
  std::vector<int> sequence;  ///< blocks by start (the i-th mention of a block is its micro-batch i)
  Nanoseconds makespan = 0;
  std::int64_t steps = 0;  ///< that were scheduled, in all passes: what it cost
};

/// The best schedule of all passes, including that of `sequence`. `sequence` must be one: inputs before
/// followers. O(steps * (log steps + what is ready and may not go + how far steps go ahead)) a pass.
Justified justify(const Instance& instance, const Instance& mirror, int micro_batches,
                  const std::vector<int>& sequence, const JustifyOptions& options);

}  // namespace ostinato
